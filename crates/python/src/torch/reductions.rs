//! `aten`'s reductions of a tensor, as torch's dispatcher hands them over: answered by us where that was decided, else by torch's own C++ functions.

use super::calls::{caught, launch};
use super::shim::{Boxed, Form, Over, Seen, Shim, Tensor, Theirs, Values};
use super::table::{ANY, Call, Op, PRODUCT, aligned};
use super::{HOME, Home};
use std::ffi::CStr;
use tilewright::{Addresses, Role};

/// Most dimensions of a tensor.
const DIMS: usize = 8;

/// One of `aten`'s.
struct Known {
    op: Op,
    name: &'static CStr,
    /// As C++ mangles its name; `anywhere`: one function for all devices.
    mangled: &'static str,
    anywhere: bool,
    form: Form,
}

/// How many there are.
const COUNT: usize = 9;

const KNOWN: [Known; COUNT] = [
    Known { op: Op::Sum, name: c"sum.dim_IntList", mangled: "3sum", anywhere: false, form: Form::Typed },
    Known { op: Op::Mean, name: c"mean.dim", mangled: "4mean", anywhere: false, form: Form::Typed },
    Known { op: Op::Amax, name: c"amax", mangled: "4amax", anywhere: false, form: Form::Dims },
    Known { op: Op::Amin, name: c"amin", mangled: "4amin", anywhere: false, form: Form::Dims },
    Known { op: Op::Argmax, name: c"argmax", mangled: "6argmax", anywhere: false, form: Form::Dim },
    Known { op: Op::Argmin, name: c"argmin", mangled: "6argmin", anywhere: false, form: Form::Dim },
    Known { op: Op::Logsumexp, name: c"logsumexp", mangled: "9logsumexp", anywhere: true, form: Form::Dims },
    Known { op: Op::Max, name: c"max.dim", mangled: "3max", anywhere: false, form: Form::WithIndices },
    Known { op: Op::Min, name: c"min.dim", mangled: "3min", anywhere: false, form: Form::WithIndices },
];

/// Torch's own functions of each; None: it is left alone.
pub struct Reductions([[Option<Theirs>; COUNT]; 2]);

impl Reductions {
    pub fn find(shim: &Shim) -> Reductions {
        let of = |cuda| KNOWN.each_ref().map(|known| shim.reduction(known.mangled, known.anywhere, known.form, cuda));
        Reductions([of(false), of(true)])
    }
    fn theirs(&self, cuda: bool, at: usize) -> Option<&Theirs> {
        self.0[usize::from(cuda)].get(at)?.as_ref()
    }
}

/// The kernels in the place of `aten`'s, for a device's dispatch key.
pub fn overrides<const CUDA: bool>(found: &Reductions) -> impl Iterator<Item = (&'static CStr, Boxed)> {
    let kernels: [Boxed; COUNT] = [
        boxed::<CUDA, 0>,
        boxed::<CUDA, 1>,
        boxed::<CUDA, 2>,
        boxed::<CUDA, 3>,
        boxed::<CUDA, 4>,
        boxed::<CUDA, 5>,
        boxed::<CUDA, 6>,
        boxed::<CUDA, 7>,
        boxed::<CUDA, 8>,
    ];
    let named = KNOWN.iter().map(|known| known.name).zip(kernels).enumerate();
    named.filter(|(at, _)| found.theirs(CUDA, *at).is_some()).map(|(_, kernel)| kernel)
}

unsafe extern "C-unwind" fn boxed<const CUDA: bool, const AT: usize>(stack: *mut u64, _: u64, _: u64) {
    let Some(home) = HOME.get() else { return };
    let Some(theirs) = home.reductions.theirs(CUDA, AT) else { return };
    let shim = &home.shim;
    // SAFETY: a tensor and what it is reduced over, which are ours now.
    let answered = caught(|home| unsafe {
        let x = Tensor::owned(shim, *stack);
        let over = shim.over(KNOWN[AT].form, stack.add(1))?;
        let ours = reduce(home, CUDA, KNOWN[AT].op, &x, &over)?;
        Ok((x, over, ours))
    });
    let result = match answered {
        None => return,
        Some((_, (_, _, Some(ours)))) => ours,
        // SAFETY: a living tensor. C++'s exceptions pass here, where nothing catches them.
        Some((_, (x, over, None))) => match unsafe { shim.reduced(theirs, x.handle, &over) } {
            Ok(result) => result,
            Err(e) => return shim.raise(&String::from(e)),
        },
    };
    // SAFETY: room for the results.
    unsafe {
        *stack = result.values.given();
        if let Some(indices) = result.indices {
            *stack.add(1) = indices.given();
        }
    };
}

/// Which dimensions of so many are reduced, a bit each; None: not for us to say.
fn reduced(op: Op, over: &Over, dims: usize) -> Option<u64> {
    let all = (1_u64 << dims) - 1;
    let Some(listed) = over.dims() else { return Some(all) };
    if listed.is_empty() {
        return (op != Op::Logsumexp).then_some(all);
    }
    listed.iter().try_fold(0, |bits, &dim| {
        let at = if dim < 0 { dim + dims as i64 } else { dim };
        let bit = 1_u64 << u32::try_from(at).ok().filter(|at| (*at as usize) < dims)?;
        // Torch refuses a dimension that is given twice.
        (bits & bit == 0).then_some(bits | bit)
    })
}

/// A reduction, where it is ours.
///
/// # Safety
/// A living tensor.
unsafe fn reduce<'a>(home: &'a Home, cuda: bool, op: Op, x: &Tensor<'_>, over: &Over) -> Result<Option<Values<'a>>, String> {
    let shim = &home.shim;
    // SAFETY: the caller's.
    let seen = unsafe { shim.look_without_address(x.handle) }?;
    let dims = seen.shape.len();
    let (Some(from), 1..=DIMS) = (shim.dtype(seen.dtype), dims) else { return Ok(None) };
    let indexes = matches!(op, Op::Argmax | Op::Argmin);
    let dtype = if indexes { shim.indices() } else { over.dtype.unwrap_or(seen.dtype) };
    // Any other type is converted before it is summed.
    let wider = from.ends_with("16") && shim.dtype(dtype) == Some("float32");
    let Some(bits) = reduced(op, over, dims).filter(|_| indexes || dtype == seen.dtype || wider) else { return Ok(None) };
    if seen.shape.contains(&0) {
        return Ok(None);
    }
    // As `_reduction_of` in `python/tilewright/_operators.py` reads it.
    let how = [bits as i64, i64::from(!indexes && dtype == seen.dtype)];
    let anywhere = Call { own: false, op, cuda, operands: &[&seen], alignments: ANY, how: &how, last: false };
    if home.table.falls_back::<PRODUCT>(&anywhere) {
        return Ok(None);
    }
    // SAFETY: the caller's.
    let seen = Seen { address: unsafe { shim.address(x.handle) }?, ..seen };
    let operands = [&seen];
    let call = Call { operands: &operands, alignments: [aligned(cuda, seen.address), 8, 8], ..anywhere };
    let Some(ours) = home.table.ours(shim, &call)? else { return Ok(None) };
    let mut shape = [1; DIMS];
    let mut count = 0;
    for (at, &size) in seen.shape.iter().enumerate() {
        let gone = bits >> at & 1 == 1;
        if !gone || over.keeps {
            shape[count] = if gone { 1 } else { size };
            count += 1;
        }
    }
    let out = shim.empty(&shape[..count], dtype, cuda, seen.device)?;
    let found = matches!(op, Op::Max | Op::Min).then(|| shim.empty(&shape[..count], shim.indices(), cuda, seen.device));
    let found = found.transpose()?;
    let at = seen.address;
    let mut addresses = Addresses::operands([at; 3]);
    // SAFETY: living tensors, as large as the call was planned for.
    unsafe {
        addresses.set(Role::Reduction(0), shim.address(out.handle)?);
        if let Some(found) = &found {
            addresses.set(Role::Reduction(1), shim.address(found.handle)?);
        }
        launch(shim, &ours, cuda, seen.device, addresses)?;
    }
    Ok(Some(Values { values: out, indices: found }))
}
