//! Products as torch's dispatcher hands them over: looked up by all that their kernels depend on, then launched, or given to torch.

use super::shim::{Boxed, Handle, Seen, Shim, Tensor};
use super::{HOME, Home};
use crate::errors::class;
use crate::operation::PyPrepared;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::CStr;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tilewright::{Addresses, Factors, Prepared, Stream};

/// Most dimensions of a factor.
const DIMS: usize = 3;

/// Operator, device, type, shapes of both factors, calls, whether we answer, the reason if not.
pub type Told = (&'static str, String, &'static str, Vec<Vec<i64>>, u64, bool, String);

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Mm,
    Bmm,
    /// The product of matrices, and a vector added to each row.
    Addmm,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Op::Mm => "mm",
            Op::Bmm => "bmm",
            Op::Addmm => "addmm",
        }
    }
    const fn dims(self) -> usize {
        if matches!(self, Op::Bmm) { 3 } else { 2 }
    }
}

/// Mixes the words of a key: a look-up belongs to every call.
#[derive(Clone, Copy, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(whole));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// All that the kernels of a call depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// An operator of ours, which torch answers only where it must.
    own: bool,
    op: Op,
    cuda: bool,
    device: i32,
    dtype: i32,
    /// Powers of two that divide the addresses of both factors and the result.
    alignments: [u8; 3],
    /// Shape and strides of both factors.
    factors: [[i64; DIMS]; 4],
}

struct Decided {
    /// What runs it with how much workspace; None: torch.
    ours: Option<(Prepared, u64)>,
    reason: String,
    calls: AtomicU64,
}

/// What has been decided so far.
pub struct Table {
    decide: Py<PyAny>,
    known: RwLock<HashMap<Key, Arc<Decided>, BuildHasherDefault<Mixed>>>,
    /// Kept for graphs that have captured them.
    former: Mutex<Vec<Arc<Decided>>>,
}

impl Table {
    pub fn new(decide: Py<PyAny>) -> Table {
        Table { decide, known: RwLock::default(), former: Mutex::default() }
    }

    pub fn forget(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.extend(known.drain().map(|(_, decided)| decided).filter(|decided| decided.ours.is_some()));
    }

    pub fn told(&self) -> Vec<Told> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let told = known.iter().map(|(key, decided)| {
            let shapes = [key.factors[0], key.factors[2]].map(|shape| shape[..key.op.dims()].to_vec()).to_vec();
            let dtype = HOME.get().and_then(|home| home.shim.dtype(key.dtype)).unwrap_or("another type");
            let calls = decided.calls.load(Ordering::Relaxed);
            (key.op.name(), key.place(), dtype, shapes, calls, decided.ours.is_some(), decided.reason.clone())
        });
        told.collect()
    }

    /// What is decided about a call, now if it is new; None: nothing can be now.
    fn decided(&self, shim: &Shim, key: &Key, factors: [&Seen<'_>; 2]) -> Result<Option<Arc<Decided>>, String> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let decided = match known {
            Some(decided) => Some(decided),
            None => self.ask(key, shim.dtype(key.dtype).unwrap_or_default(), factors)?,
        };
        if let Some(decided) = &decided {
            decided.calls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(decided)
    }

    /// Asks Python. None: not now.
    fn ask(&self, key: &Key, dtype: &str, [a, b]: [&Seen<'_>; 2]) -> Result<Option<Arc<Decided>>, String> {
        let answer = Python::attach(|py| -> PyResult<Option<Decided>> {
            let alignments = key.alignments.map(|power| 1_u64 << power);
            let factors = [a, b].map(|x| (x.address, x.shape.to_vec(), x.strides.to_vec()));
            let answer = self.decide.bind(py).call1((key.own, key.op.name(), key.place(), dtype, factors, alignments))?;
            if answer.is_none() {
                return Ok(None);
            }
            let (ours, reason) = match answer.cast::<PyPrepared>() {
                Ok(prepared) => {
                    let prepared = prepared.get().inner().clone();
                    let workspace = if key.cuda { prepared.workspace_bytes() } else { 0 };
                    (Some((prepared, workspace)), String::new())
                }
                Err(_) => (None, answer.extract()?),
            };
            Ok(Some(Decided { ours, reason, calls: AtomicU64::new(0) }))
        });
        let named = |py: Python<'_>, e: &PyErr| match e.get_type(py).name() {
            Ok(class) => format!("tilewright.{class}: {}", e.value(py)),
            Err(_) => e.to_string(),
        };
        let answer = answer.map_err(|e| Python::attach(|py| named(py, &e)))?;
        Ok(answer.map(|decided| {
            let decided = Arc::new(decided);
            self.known.write().unwrap_or_else(PoisonError::into_inner).entry(*key).or_insert(decided).clone()
        }))
    }
}

impl Key {
    fn place(&self) -> String {
        if self.cuda { format!("cuda:{}", self.device) } else { "cpu".into() }
    }
}

/// The kernels of our own operators for a dispatch key, by name.
pub fn ours<const CUDA: bool>() -> [(&'static CStr, Boxed); 3] {
    [
        (c"mm", boxed::<true, CUDA, MM, false>),
        (c"bmm", boxed::<true, CUDA, BMM, false>),
        (c"addmm", boxed::<true, CUDA, ADDMM, false>),
    ]
}

/// Those in the place of `aten`'s. Its `addmm` has scalars, which do not pass the C interface: see `linear`.
pub fn overrides<const CUDA: bool>() -> [(&'static CStr, Boxed); 4] {
    [
        (c"mm", boxed::<false, CUDA, MM, false>),
        (c"bmm", boxed::<false, CUDA, BMM, false>),
        (c"mm.out", boxed::<false, CUDA, MM, true>),
        (c"bmm.out", boxed::<false, CUDA, BMM, true>),
    ]
}

const MM: u8 = 0;
const BMM: u8 = 1;
const ADDMM: u8 = 2;

unsafe extern "C-unwind" fn boxed<const OWN: bool, const CUDA: bool, const OP: u8, const OUT: bool>(
    stack: *mut u64,
    _: u64,
    _: u64,
) {
    let which = Which { own: OWN, cuda: CUDA, op: [Op::Mm, Op::Bmm, Op::Addmm][usize::from(OP)] };
    // SAFETY: the operator's tensors are on the stack, which are ours now; the result takes the place of the first.
    unsafe {
        run(stack, |home| {
            let take = |n| Tensor::owned(&home.shim, *stack.add(n));
            let bias = matches!(which.op, Op::Addmm).then(|| take(0));
            let at = usize::from(bias.is_some());
            let (a, b, out) = (take(at), take(at + 1), OUT.then(|| take(2)));
            let result = answer(home, &which, [a.handle, b.handle], bias.as_ref().map(|bias| bias.handle), out)?;
            Ok([result.given()])
        });
    }
}

pub struct Which {
    pub own: bool,
    pub cuda: bool,
    pub op: Op,
}

/// Puts what a kernel gives on its stack, or raises why it gives nothing.
///
/// # Safety
/// A stack with room for the results, whose arguments the kernel takes.
pub unsafe fn run<const N: usize>(stack: *mut u64, kernel: impl FnOnce(&'static Home) -> Result<[u64; N], String>) {
    // SAFETY: the library is registered after it is there.
    let Some(home) = HOME.get() else { return };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel(home))) {
        Ok(Ok(results)) => {
            for (n, result) in results.into_iter().enumerate() {
                // SAFETY: the caller's.
                unsafe { *stack.add(n) = result };
            }
        }
        Ok(Err(why)) => home.shim.raise(&why),
        Err(_) => home.shim.raise("a defect of tilewright: its message is on stderr"),
    }
}

/// A tensor as a product reads or writes it.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub handle: Handle,
    pub seen: Seen<'a>,
    /// The tensor of the handle has the same memory with another shape.
    pub viewed: bool,
}

/// # Safety
/// Living tensors.
unsafe fn answer<'a>(
    home: &'a Home,
    which: &Which,
    [a, b]: [Handle; 2],
    bias: Option<Handle>,
    out: Option<Tensor<'a>>,
) -> Result<Tensor<'a>, String> {
    let shim = &home.shim;
    // SAFETY: the caller's.
    let operand = |handle: Handle| unsafe { shim.look(handle) }.map(|seen| Operand { handle, seen, viewed: false });
    let (a, b, bias) = (operand(a)?, operand(b)?, bias.map(operand).transpose()?);
    check(shim, which, &a.seen, &b.seen)?;
    if let Some(Operand { seen: bias, .. }) = bias.as_ref().filter(|bias| !is_bias(&bias.seen, &b.seen)) {
        return Err(format!(
            "addmm: a bias of shape {:?} and strides {:?}: the columns of mat2, contiguous, of its type and device, are needed",
            bias.shape, bias.strides
        ));
    }
    let dims = a.seen.shape.len();
    let mut shape = [0; DIMS];
    shape[..dims].copy_from_slice(a.seen.shape);
    shape[dims - 1] = b.seen.shape[dims - 1];
    let shape = &shape[..dims];
    // Torch refuses results that overlap a factor.
    let fits = |out: &Seen<'_>| {
        let size = shim.bytes_of(out.dtype);
        let apart = |x: &Seen<'_>| out.end(size) <= x.address || x.end(size) <= out.address;
        let same = out.shape == shape && out.dtype == a.seen.dtype && out.device == a.seen.device;
        same && is_packed(out) && apart(&a.seen) && apart(&b.seen)
    };
    let fits = match &out {
        Some(out) => fits(&operand(out.handle)?.seen),
        None => true,
    };
    let copies = if which.own { packed(shim, which, [a.handle, b.handle], [&a.seen, &b.seen])? } else { [None, None] };
    let [a, b] =
        [(&copies[0], a), (&copies[1], b)].map(|(copy, given)| copy.as_ref().map_or(Ok(given), |copy| operand(copy.handle)));
    let (a, b) = (a?, b?);
    let out = out.map_or_else(|| shim.empty(shape, a.seen.dtype, which.cuda, a.seen.device), Ok)?;
    // SAFETY: the caller's, and the shapes of a product.
    unsafe { multiply(home, which, [&a, &b], bias.as_ref(), &operand(out.handle)?, fits) }?;
    Ok(out)
}

/// A vector of a product's columns, of its type and device.
pub fn is_bias(x: &Seen<'_>, b: &Seen<'_>) -> bool {
    x.shape == &b.shape[1..] && is_packed(x) && x.dtype == b.dtype && x.device == b.device
}

/// Computes a product by whoever is decided to, by torch where we may not.
///
/// # Safety
/// Living tensors, whose shapes are those of a product.
pub unsafe fn multiply(
    home: &Home,
    which: &Which,
    [a, b]: [&Operand<'_>; 2],
    bias: Option<&Operand<'_>>,
    out: &Operand<'_>,
    may: bool,
) -> Result<(), String> {
    let shim = &home.shim;
    let key = key(which, [&a.seen, &b.seen], &out.seen);
    let may = may && !a.seen.shape.contains(&0) && !b.seen.shape.contains(&0) && shim.dtype(key.dtype).is_some();
    let decided = if may { home.table.decided(shim, &key, [&a.seen, &b.seen])? } else { None };
    if let Some((kernels, space)) = decided.as_ref().and_then(|decided| decided.ours.as_ref()) {
        let bias = bias.map_or(0, |bias| bias.seen.address);
        // SAFETY: living tensors, as large as the call was planned for.
        return unsafe { launch(shim, &key, kernels, *space, [&a.seen, &b.seen, &out.seen], bias) };
    }
    // SAFETY: the caller's.
    let view = |x: &Operand<'_>| x.viewed.then(|| unsafe { shim.view(x.handle, &x.seen) }).transpose();
    let views = [view(a)?, view(b)?, view(out)?];
    let [a, b, out] =
        [(a, &views[0]), (b, &views[1]), (out, &views[2])].map(|(x, view)| view.as_ref().map_or(x.handle, |v| v.handle));
    // SAFETY: the caller's.
    Ok(unsafe { shim.product(which.op.dims() == 3, which.cuda, out, [a, b], bias.map(|bias| bias.handle)) }?)
}

/// # Safety
/// Living tensors that lie as the key says.
unsafe fn launch(
    shim: &Shim,
    key: &Key,
    kernels: &Prepared,
    space: u64,
    [a, b, out]: [&Seen<'_>; 3],
    bias: u64,
) -> Result<(), String> {
    let named = |e: tilewright::Error| format!("tilewright.{}: {e}", class(&e));
    let factors = Factors { alpha: 1.0, beta: 0.0 };
    let mut addresses = Addresses { a: a.address, b: b.address, c: out.address, bias, ..Addresses::default() };
    if !key.cuda {
        // SAFETY: the caller's.
        return unsafe { kernels.launch_on_host_memory(&addresses, factors, None) }.map_err(named);
    }
    // Torch gives the memory to others in the stream's order, behind this launch.
    let space = if space > 0 { Some(shim.bytes(space, key.device)?) } else { None };
    if let Some(space) = &space {
        // SAFETY: it lives.
        addresses.workspace = unsafe { shim.look(space.handle) }?.address;
    }
    // SAFETY: the caller's.
    unsafe { kernels.launch(Stream(shim.stream(key.device)?), &addresses, factors, None) }.map_err(named)
}

/// What torch would refuse, and what no kernel of ours does, in torch's words where it has some.
fn check(shim: &Shim, which: &Which, a: &Seen<'_>, b: &Seen<'_>) -> Result<(), String> {
    let (dims, name) = (which.op.dims(), which.op.name());
    let told = |x: &Seen<'_>| x.shape.iter().map(i64::to_string).collect::<Vec<_>>().join("x");
    if a.shape.len() != dims || b.shape.len() != dims {
        return Err(format!("{name} of {} and {}: both must be {dims}-D tensors", told(a), told(b)));
    }
    if a.shape[dims - 1] != b.shape[dims - 2] || dims == 3 && a.shape[0] != b.shape[0] {
        return Err(format!("{name}: mat1 and mat2 shapes cannot be multiplied ({} and {})", told(a), told(b)));
    }
    if a.device != b.device {
        return Err(format!("{name}: expected all tensors to be on the same device"));
    }
    if a.dtype != b.dtype || which.own && shim.dtype(a.dtype).is_none() {
        let name_of = |x: &Seen<'_>| shim.dtype(x.dtype).unwrap_or("a type that no kernel here computes with");
        return Err(format!(
            "{name}: expected both to have the same dtype, float16, bfloat16, float32 or float64, but got {} and {}",
            name_of(a),
            name_of(b)
        ));
    }
    Ok(())
}

fn is_packed(x: &Seen<'_>) -> bool {
    let mut next = 1;
    x.shape.iter().zip(x.strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == next;
        next *= size.max(1);
        fits
    })
}

/// Copies of those factors that BLAS could not read: neither rows nor columns lie one behind the other.
fn packed<'a>(
    shim: &'a Shim,
    which: &Which,
    handles: [Handle; 2],
    seen: [&Seen<'_>; 2],
) -> Result<[Option<Tensor<'a>>; 2], String> {
    let mut copies = [None, None];
    for ((x, handle), copy) in seen.into_iter().zip(handles).zip(&mut copies) {
        let n = x.shape.len();
        let ([rows, cols], [down, right]) = ([x.shape[n - 2], x.shape[n - 1]], [x.strides[n - 2], x.strides[n - 1]]);
        let by_rows = (cols <= 1 || right == 1) && (rows <= 1 || down >= cols);
        let by_columns = (rows <= 1 || down == 1) && (cols <= 1 || right >= rows);
        if !by_rows && !by_columns {
            let to = shim.empty(x.shape, x.dtype, which.cuda, x.device)?;
            // SAFETY: both live, and have the same shape.
            unsafe { shim.copy(handle, &to) }?;
            *copy = Some(to);
        }
    }
    Ok(copies)
}

fn key(which: &Which, [a, b]: [&Seen<'_>; 2], out: &Seen<'_>) -> Key {
    let list = |from: &[i64]| std::array::from_fn(|n| from.get(n).copied().unwrap_or(0));
    // On the CPU operands are copied: where they begin matters to nobody.
    let aligned = |x: &Seen<'_>| if which.cuda { x.address.trailing_zeros().min(8) as u8 } else { 8 };
    Key {
        own: which.own,
        op: which.op,
        cuda: which.cuda,
        device: a.device,
        dtype: a.dtype,
        alignments: [aligned(a), aligned(b), aligned(out)],
        factors: [list(a.shape), list(a.strides), list(b.shape), list(b.strides)],
    }
}
