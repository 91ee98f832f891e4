//! Products as torch's dispatcher hands them over: looked up by all that their kernels depend on, then launched, or given to torch.

use super::shim::{Boxed, Handle, Made, Seen, Shim, Tensor};
use super::table::{ANY, Call, Op, Ours, PRODUCT, aligned};
use super::{HOME, Home};
use crate::errors::class;
use std::ffi::CStr;
use std::ops::Deref;
use tilewright::{Addresses, Factors, Role, Stream};

/// Most dimensions of a factor.
const DIMS: usize = 3;

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
    let take = |home: &'static Home, n: usize| {
        // SAFETY: the operator's tensors are on the stack, which are ours now; the result takes the place of the first.
        unsafe { Tensor::owned(&home.shim, *stack.add(n)) }
    };
    // SAFETY: as above.
    let answered = caught(|home| unsafe {
        let bias = matches!(which.op, Op::Addmm).then(|| take(home, 0));
        let at = usize::from(bias.is_some());
        let (a, b, out) = (take(home, at), take(home, at + 1), OUT.then(|| take(home, 2)));
        let mut seen = [home.shim.look_without_address(a.handle)?, home.shim.look_without_address(b.handle)?];
        if !OWN && falls_back(home, &which, [&seen[0], &seen[1]]) {
            let Seen { dtype, device, .. } = seen[0];
            let out = match (out, home.shim.made(which.op == Op::Bmm, CUDA)) {
                (Some(out), _) => out,
                (None, Some(made)) => {
                    // They stay on the stack.
                    a.given();
                    b.given();
                    return Ok(Answer::Torchs(made));
                }
                (None, None) => home.shim.empty(&Shape::of(&seen[0], &seen[1]), dtype, CUDA, device)?,
            };
            home.shim.product(which.op == Op::Bmm, CUDA, out.handle, [a.handle, b.handle], None)?;
            return Ok(Answer::Given(out.given()));
        }
        for (seen, x) in seen.iter_mut().zip([&a, &b]) {
            seen.address = home.shim.address(x.handle)?;
        }
        let result = answer(home, &which, [a.handle, b.handle], seen, bias.as_ref().map(|bias| bias.handle), out)?;
        Ok(Answer::Given(result.given()))
    });
    let result = match answered {
        // SAFETY: as above. C++'s exceptions pass here, where nothing catches them.
        Some((home, Answer::Torchs(made))) => unsafe {
            let (a, b) = (take(home, 0), take(home, 1));
            match home.shim.make(made, [a.handle, b.handle]) {
                Ok(result) => result.given(),
                Err(e) => return home.shim.raise(&String::from(e)),
            }
        },
        Some((_, Answer::Given(result))) => result,
        None => return,
    };
    // SAFETY: as above.
    unsafe { *stack = result };
}

/// Who has made a product.
enum Answer {
    Given(u64),
    /// Torch shall, of the tensors on the stack.
    Torchs(Made),
}

pub struct Which {
    pub own: bool,
    pub cuda: bool,
    pub op: Op,
}

/// What a kernel gives, or raises why it gives nothing.
pub fn caught<T>(kernel: impl FnOnce(&'static Home) -> Result<T, String>) -> Option<(&'static Home, T)> {
    // The library is registered after it is there.
    let home = HOME.get()?;
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel(home))) {
        Ok(Ok(given)) => return Some((home, given)),
        Ok(Err(why)) => home.shim.raise(&why),
        Err(_) => home.shim.raise("a defect of tilewright: its message is on stderr"),
    }
    None
}

/// Puts what a kernel gives on its stack.
///
/// # Safety
/// A stack with room for the results, whose arguments the kernel takes.
pub unsafe fn run<const N: usize>(stack: *mut u64, kernel: impl FnOnce(&'static Home) -> Result<[u64; N], String>) {
    for (n, result) in caught(kernel).into_iter().flat_map(|(_, results)| results).enumerate() {
        // SAFETY: the caller's.
        unsafe { *stack.add(n) = result };
    }
}

/// A tensor as a product reads it.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub handle: Handle,
    pub seen: Seen<'a>,
    /// The tensor of the handle has the same memory with another shape.
    pub viewed: bool,
}

/// Where a product is written to.
#[derive(Clone, Copy)]
pub struct Out<'a> {
    pub handle: Handle,
    /// Power of two that divides its address. Torch's allocators give multiples of 512 bytes.
    pub aligned: u8,
    /// Shape and strides of the matrix, where the tensor has the same memory with another shape.
    pub viewed: Option<(&'a [i64; 2], &'a [i64; 2])>,
}

impl Out<'_> {
    pub fn new(handle: Handle) -> Out<'static> {
        Out { handle, aligned: 8, viewed: None }
    }
}

/// # Safety
/// Living tensors.
unsafe fn answer<'a>(
    home: &'a Home,
    which: &Which,
    [a, b]: [Handle; 2],
    seen: [Seen<'_>; 2],
    bias: Option<Handle>,
    out: Option<Tensor<'a>>,
) -> Result<Tensor<'a>, String> {
    let shim = &home.shim;
    // SAFETY: the caller's.
    let operand = |handle: Handle| unsafe { shim.look(handle) }.map(|seen| Operand { handle, seen, viewed: false });
    let [a, b] = [(a, seen[0]), (b, seen[1])].map(|(handle, seen)| Operand { handle, seen, viewed: false });
    let bias = bias.map(operand).transpose()?;
    check(shim, which, &a.seen, &b.seen)?;
    if let Some(Operand { seen: bias, .. }) = bias.as_ref().filter(|bias| !is_bias(&bias.seen, &b.seen)) {
        return Err(format!(
            "addmm: a bias of shape {:?} and strides {:?}: the columns of mat2, contiguous, of its type and device, are needed",
            bias.shape, bias.strides
        ));
    }
    let shape: &[i64] = &Shape::of(&a.seen, &b.seen);
    let copies = if which.own { packed(shim, which, [a.handle, b.handle], [&a.seen, &b.seen])? } else { [None, None] };
    let [a, b] =
        [(&copies[0], a), (&copies[1], b)].map(|(copy, given)| copy.as_ref().map_or(Ok(given), |copy| operand(copy.handle)));
    let (a, b) = (a?, b?);
    let (out, to, fits) = match out {
        None => {
            let out = shim.empty(shape, a.seen.dtype, which.cuda, a.seen.device)?;
            let to = Out::new(out.handle);
            (out, to, true)
        }
        Some(out) => {
            let seen = operand(out.handle)?.seen;
            // Torch refuses results that overlap a factor.
            let size = shim.bytes_of(seen.dtype);
            let apart = |x: &Seen<'_>| seen.end(size) <= x.address || x.end(size) <= seen.address;
            let same = seen.shape == shape && seen.dtype == a.seen.dtype && seen.device == a.seen.device;
            let fits = same && seen.is_packed(false) && apart(&a.seen) && apart(&b.seen);
            let to = Out { aligned: aligned(which.cuda, seen.address), ..Out::new(out.handle) };
            (out, to, fits)
        }
    };
    // SAFETY: the caller's, and the shapes of a product.
    unsafe { multiply(home, which, [&a, &b], bias.as_ref(), &to, fits) }?;
    Ok(out)
}

/// Is a product known as one that torch computes, wherever it lies? Then it was checked, too.
fn falls_back(home: &Home, which: &Which, [a, b]: [&Seen<'_>; 2]) -> bool {
    let &Which { own, cuda, op } = which;
    let alike = a.dtype == b.dtype && a.device == b.device && a.shape.len() == b.shape.len() && a.shape.len() <= DIMS;
    alike && home.table.falls_back::<PRODUCT>(&Call { own, op, cuda, operands: &[a, b], alignments: ANY, how: &[], last: false })
}

/// Shape of a product.
struct Shape([i64; DIMS], usize);

impl Shape {
    /// Of factors with as many dimensions, `DIMS` at most.
    fn of(a: &Seen<'_>, b: &Seen<'_>) -> Shape {
        let mut shape = [0; DIMS];
        shape.iter_mut().zip(a.shape).for_each(|(to, size)| *to = *size);
        if let (Some(to), Some(columns)) = (shape.get_mut(a.shape.len().wrapping_sub(1)), b.shape.last()) {
            *to = *columns;
        }
        Shape(shape, a.shape.len().min(DIMS))
    }
}

impl Deref for Shape {
    type Target = [i64];
    fn deref(&self) -> &[i64] {
        &self.0[..self.1]
    }
}

/// A vector of a product's columns, of its type and device.
pub fn is_bias(x: &Seen<'_>, b: &Seen<'_>) -> bool {
    x.shape == &b.shape[1..] && x.is_packed(false) && x.dtype == b.dtype && x.device == b.device
}

/// Computes a product with our kernel or torch's, as the table decides; with torch's if ours is not legal.
///
/// # Safety
/// Living tensors, whose shapes are those of a product.
pub unsafe fn multiply(
    home: &Home,
    which: &Which,
    [a, b]: [&Operand<'_>; 2],
    bias: Option<&Operand<'_>>,
    out: &Out<'_>,
    may: bool,
) -> Result<(), String> {
    let shim = &home.shim;
    let may = may && !a.seen.shape.contains(&0) && !b.seen.shape.contains(&0);
    let alignments = [aligned(which.cuda, a.seen.address), aligned(which.cuda, b.seen.address), out.aligned];
    let &Which { own, cuda, op } = which;
    let call = Call { own, op, cuda, operands: &[&a.seen, &b.seen], alignments, how: &[], last: false };
    let ours = if may { home.table.ours(shim, &call)? } else { None };
    if let Some(ours) = ours {
        // SAFETY: living tensors, as large as the call was planned for.
        unsafe {
            let c = shim.address(out.handle)?;
            let bias = bias.map_or(0, |bias| bias.seen.address);
            let addresses = Addresses::operands([a.seen.address, b.seen.address, c]).with(Role::Bias, bias);
            return launch(shim, &ours, cuda, a.seen.device, addresses);
        }
    }
    // SAFETY: the caller's.
    let view = |x: &Operand<'_>| x.viewed.then(|| unsafe { shim.view(x.handle, x.seen.shape, x.seen.strides) }).transpose();
    let views = [view(a)?, view(b)?];
    // SAFETY: the caller's.
    let into = out.viewed.map(|(shape, strides)| unsafe { shim.view(out.handle, shape, strides) }).transpose()?;
    let [a, b] = [(a, &views[0]), (b, &views[1])].map(|(x, view)| view.as_ref().map_or(x.handle, |v| v.handle));
    let out = into.as_ref().map_or(out.handle, |v| v.handle);
    // SAFETY: the caller's.
    Ok(unsafe { shim.product(op == Op::Bmm, cuda, out, [a, b], bias.map(|bias| bias.handle)) }?)
}

/// Runs kernels on torch's current stream, with workspace from its allocator.
///
/// # Safety
/// Addresses of what the kernels were planned for.
pub unsafe fn launch(shim: &Shim, ours: &Ours, cuda: bool, device: i32, mut addresses: Addresses) -> Result<(), String> {
    let named = |e: tilewright::Error| format!("tilewright.{}: {e}", class(&e));
    let factors = Factors::real(1.0, 0.0);
    if !cuda {
        // SAFETY: the caller's.
        return unsafe { ours.kernels.launch_on_host_memory(&addresses, factors, None) }.map_err(named);
    }
    // Torch's allocator reuses the memory in stream order, after this launch.
    let space = if ours.space > 0 { Some(shim.bytes(ours.space, device)?) } else { None };
    if let Some(space) = &space {
        // SAFETY: it lives.
        addresses.set(Role::Workspace, unsafe { shim.address(space.handle) }?);
    }
    // SAFETY: the caller's.
    unsafe { ours.kernels.launch(Stream(shim.stream(device)?), &addresses, factors, None) }.map_err(named)
}

/// What torch would refuse, and what no kernel of ours does, in torch's words where it has some.
fn check(shim: &Shim, which: &Which, a: &Seen<'_>, b: &Seen<'_>) -> Result<(), String> {
    let (dims, name) = (if which.op == Op::Bmm { 3 } else { 2 }, which.op.name());
    let shape = |x: &Seen<'_>| x.shape.iter().map(i64::to_string).collect::<Vec<_>>().join("x");
    if a.shape.len() != dims || b.shape.len() != dims {
        return Err(format!("{name} of {} and {}: both must be {dims}-D tensors", shape(a), shape(b)));
    }
    if a.shape[dims - 1] != b.shape[dims - 2] || dims == 3 && a.shape[0] != b.shape[0] {
        return Err(format!("{name}: mat1 and mat2 shapes cannot be multiplied ({} and {})", shape(a), shape(b)));
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

/// Copies operands that BLAS could not read: neither their rows nor their columns are contiguous.
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
