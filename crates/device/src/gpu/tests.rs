//! A GPU device over a driver that records its calls: what it calls, in which state of the thread, and until when.

use super::*;
use crate::device::{Backend, DeviceKind};
use crate::job::Binary;
use crate::{Cache, NativeHandles};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tilewright_ir::{Builder, Target, TensorMap};

/// How far a thread of CUDA respects captures, as the driver numbers it: of all threads, and of none.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// What the driver has seen.
#[derive(Default)]
struct Seen {
    calls: Mutex<Vec<String>>,
    /// The stream that captures a graph.
    capturing: AtomicU64,
    /// The thread's mode.
    mode: Mutex<u32>,
    handles: AtomicU64,
    /// The function of the hold, the flags that it shares with the host, and its last ticket.
    hold: AtomicUsize,
    flags: [AtomicU32; 2],
    ticket: AtomicU32,
    /// Holds run out of time before the host releases them.
    expires: AtomicBool,
    /// Launches since the device was held, and the most of them.
    held: AtomicUsize,
    most: AtomicUsize,
}

impl Seen {
    /// Notes a call, and whether it would end a capture elsewhere.
    fn note(&self, call: &str) {
        let ends = self.capturing.load(Ordering::SeqCst) != 0 && *self.mode.lock().unwrap() != RELAXED;
        self.calls.lock().unwrap().push(if ends { format!("{call} ends the capture") } else { call.into() });
    }
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
    /// Notes a launch, and counts the launches that a hold delays.
    fn launched(&self, function: Handle, ticket: impl FnOnce() -> u32) {
        if function.0 == self.hold.load(Ordering::SeqCst) {
            self.ticket.store(ticket(), Ordering::SeqCst);
            self.held.store(0, Ordering::SeqCst);
            if self.expires.load(Ordering::SeqCst) {
                self.flags[1].store(self.ticket.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        } else if self.flags[0].load(Ordering::SeqCst) < self.ticket.load(Ordering::SeqCst) {
            let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(held, Ordering::SeqCst);
        }
    }
    fn handle(&self) -> Handle {
        Handle(self.handles.fetch_add(512, Ordering::SeqCst) as usize + 512)
    }
}

struct Recorded(Arc<Seen>);

impl Drop for Recorded {
    fn drop(&mut self) {
        self.0.calls.lock().unwrap().push("the driver's end".into());
    }
}

impl Driver for Recorded {
    fn native(&self) -> NativeHandles {
        NativeHandles::Cuda { context: 1, stream: 1 }
    }
    fn stream(&self) -> Stream {
        Stream(1)
    }
    fn enter(&self) -> Result<Before, Failure> {
        let mode = std::mem::replace(&mut *self.0.mode.lock().unwrap(), RELAXED);
        Ok(Before { current: None, capture: Some(mode) })
    }
    fn restore(&self, before: Before) {
        *self.0.mode.lock().unwrap() = before.capture.unwrap();
    }
    fn is_capturing(&self, stream: Handle) -> bool {
        self.0.capturing.load(Ordering::SeqCst) == stream.0 as u64
    }
    fn alloc(&self, _: usize) -> Result<u64, Failure> {
        self.0.note("alloc");
        Ok(self.0.handle().0 as u64)
    }
    fn free(&self, _: u64) {
        self.0.note("free");
    }
    fn pinned(&self, _: usize) -> Result<Pinned, Failure> {
        let host = self.0.flags.as_ptr() as usize;
        Ok(Pinned { host, device: host as u64 })
    }
    fn free_pinned(&self, _: Pinned) {}
    fn write(&self, _: u64, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Failure> {
        Ok(())
    }
    fn fill(&self, _: u64, _: u8, _: usize) -> Result<(), Failure> {
        Ok(())
    }
    fn load(&self, _: &[u8], entry: &str, _: u32) -> Result<Loaded, Failure> {
        self.0.note("load");
        let loaded = Loaded { module: self.0.handle(), function: self.0.handle(), resources: Resources::default() };
        if entry == hold::ENTRY {
            self.0.hold.store(loaded.function.0, Ordering::SeqCst);
        }
        Ok(loaded)
    }
    fn unload(&self, _: Handle) {
        self.0.note("unload");
    }
    fn tensor_map(&self, _: &TensorMap, _: u64) -> Result<EncodedMap, Failure> {
        Ok(EncodedMap([0; 16]))
    }
    unsafe fn launch(&self, _: Handle, of: Handle, _: LaunchSize, _: bool, params: &mut [*mut c_void]) -> Result<(), Failure> {
        self.0.note("launch");
        // SAFETY: the second parameter of the hold is a number.
        self.0.launched(of, || unsafe { *params[1].cast::<u32>() });
        Ok(())
    }
    fn event(&self) -> Result<Handle, Failure> {
        self.0.note("event");
        Ok(self.0.handle())
    }
    fn record(&self, _: Handle) -> Result<(), Failure> {
        Ok(())
    }
    fn passed(&self, _: Handle) -> Result<bool, Failure> {
        self.0.note("ask");
        Ok(true)
    }
    fn elapsed_us(&self, _: Handle, _: Handle) -> Result<f64, Failure> {
        Ok(1.0)
    }
    fn free_event(&self, _: Handle) {
        self.0.note("free event");
    }
}

fn device(seen: &Arc<Seen>, ending: &'static Ending) -> GpuDevice<Recorded> {
    let info = DeviceInfo {
        id: "cuda:0".into(),
        name: "recorded".into(),
        backend: Backend::Cuda,
        kind: DeviceKind::Gpu,
        target: Target::by_arch("sm_90a").unwrap(),
        fingerprint: "none".into(),
        memory_bytes: 1 << 30,
        max_buffer_bytes: 1 << 30,
    };
    let options = Options { cache: Cache::disabled(), ..Options::default() };
    let compiler = Compiler { options: Vec::new(), compile: |_| Ok(Binary::default()), read_log: |_| Resources::default() };
    GpuDevice::until(ending, info, options, compiler, Recorded(seen.clone()))
}

/// An end that does not come unless the test lets it.
fn never() -> &'static Ending {
    Box::leak(Box::default())
}

fn kernel() -> Kernel {
    Builder::new("nothing", 64).finish()
}

/// Starts a kernel on a stream of somebody else's.
fn start(device: &GpuDevice<Recorded>, compiled: &Compiled, stream: usize) {
    // SAFETY: the driver records the call and touches no memory.
    unsafe { Foreign::start(device, Stream(stream), compiled, [1; 3], false, &[]) }.unwrap();
}

#[test]
fn a_capture_of_others_survives_whatever_is_made_and_freed() {
    let seen = Arc::new(Seen { capturing: AtomicU64::new(7), mode: Mutex::new(GLOBAL), ..Seen::default() });
    let device = device(&seen, never());
    let compiled = device.compile(&kernel()).unwrap();
    let buffer = device.alloc(64).unwrap();
    device.launch(&[Launch { kernel: compiled.clone(), grid: [1; 3], args: vec![] }]).unwrap();
    device.sync().unwrap();
    let mark = device.mark().unwrap();
    mark.wait().unwrap();
    drop((mark, buffer, compiled));
    drop(device);
    let calls = seen.calls();
    for needed in ["load", "alloc", "ask", "free event", "free", "unload", "the driver's end"] {
        assert!(calls.iter().any(|call| call == needed), "{needed}: {calls:?}");
    }
    assert!(!calls.iter().any(|call| call.contains("ends the capture")), "{calls:?}");
    // The thread is as it was.
    assert_eq!(*seen.mode.lock().unwrap(), GLOBAL);
    seen.note("free");
    assert_eq!(seen.calls(), ["free ends the capture"]);
}

#[test]
fn a_kernel_that_a_graph_captured_stays_loaded() {
    let seen = Arc::new(Seen::default());
    let device = device(&seen, never());
    let [plain, captured] = [(), ()].map(|()| device.compile(&kernel()).unwrap());
    start(&device, &plain, 7);
    seen.capturing.store(7, Ordering::SeqCst);
    start(&device, &captured, 7);
    seen.capturing.store(0, Ordering::SeqCst);
    start(&device, &captured, 7);
    seen.calls();
    drop(plain);
    assert_eq!(seen.calls(), ["unload"]);
    drop(captured);
    assert_eq!(seen.calls(), [""; 0]);
    // Its context lives as long.
    drop(device);
    let calls = seen.calls();
    assert!(!calls.iter().any(|call| call == "unload" || call == "the driver's end"), "{calls:?}");
}

#[test]
fn nothing_is_freed_at_the_end_of_the_process() {
    let (seen, ending) = (Arc::new(Seen::default()), never());
    let device = device(&seen, ending);
    let (compiled, buffer, mark) = (device.compile(&kernel()).unwrap(), device.alloc(64).unwrap(), device.mark().unwrap());
    device.sync().unwrap();
    ending.come(Duration::ZERO);
    // What still runs then may run.
    start(&device, &compiled, 7);
    assert!(seen.calls().contains(&"launch".to_string()));
    drop((compiled, buffer, mark));
    drop(device);
    assert_eq!(seen.calls(), [""; 0]);
}

fn timing(device: &GpuDevice<Recorded>, launches: usize, repeats: u32) -> Result<Vec<f64>, DeviceError> {
    let kernel = device.compile(&kernel()).unwrap();
    let launch = Launch { kernel, grid: [1; 3], args: vec![] };
    Device::time(device, &vec![launch; launches], &Timing::cold(repeats))
}

/// Host time is then in the span: neither ours nor a library's time is given.
#[test]
fn a_hold_that_ran_out_of_time_gives_no_time() {
    let seen = Arc::new(Seen::default());
    let device = device(&seen, never());
    assert_eq!(timing(&device, 2, 3).unwrap(), [1.0; 3]);
    let of_library = || Native::time(&device, &mut || Ok(()), &Timing::cold(2));
    assert_eq!(of_library().unwrap(), [1.0; 2]);
    seen.expires.store(true, Ordering::SeqCst);
    for failed in [timing(&device, 2, 3), of_library()] {
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("the hold of the device") && text.contains("within 2 s"), "{text}");
    }
    // Later holds are judged by their own tickets.
    seen.expires.store(false, Ordering::SeqCst);
    assert_eq!(timing(&device, 2, 3).unwrap(), [1.0; 3]);
}

/// A driver's queue that is full blocks the host, which then could not end the hold.
#[test]
fn no_more_launches_wait_behind_a_hold_than_the_queue_takes() {
    for (launches, most) in [(1, 1), (3, 3), (HELD - 1, HELD - 1), (HELD, HELD), (HELD + 1, HELD), (3 * HELD, HELD)] {
        let seen = Arc::new(Seen::default());
        assert_eq!(timing(&device(&seen, never()), launches, 2).unwrap(), [1.0; 2]);
        assert_eq!(seen.most.load(Ordering::SeqCst), most, "{launches} launches");
    }
    assert_eq!(HELD, 256);
}
