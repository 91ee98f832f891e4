//! A GPU device over a driver that records its calls: what it calls, in which state of the thread, and until when.

use super::*;
use crate::device::{Backend, DeviceKind};
use crate::job::Binary;
use crate::{Cache, NativeHandles};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
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
        Err(Failure { call: "pinned", reason: "none".into(), reach: Reach::Call })
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
    fn load(&self, _: &[u8], _: &str, _: u32) -> Result<Loaded, Failure> {
        self.0.note("load");
        Ok(Loaded { module: self.0.handle(), function: self.0.handle(), resources: Resources::default() })
    }
    fn unload(&self, _: Handle) {
        self.0.note("unload");
    }
    fn tensor_map(&self, _: &TensorMap, _: u64) -> Result<EncodedMap, Failure> {
        Ok(EncodedMap([0; 16]))
    }
    unsafe fn launch(&self, _: Handle, _: Handle, _: LaunchSize, _: bool, _: &mut [*mut c_void]) -> Result<(), Failure> {
        self.0.note("launch");
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
