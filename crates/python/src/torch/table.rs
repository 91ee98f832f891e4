//! Decisions about calls. Python is asked once about each call that differs from the calls before. From then on each thread looks
//! the decision up in a table of its own, without a lock.

use super::shim::{Seen, Shim};
use crate::operation::PyPrepared;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright::Prepared;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Mm,
    Bmm,
    /// The product of matrices, and a vector added to each row.
    Addmm,
    Forward,
    BackwardData,
    BackwardWeight,
    Sum,
    Mean,
    Amax,
    Amin,
    Argmax,
    Argmin,
    Logsumexp,
    /// Over one dimension, with indices.
    Max,
    Min,
}

impl Op {
    pub const fn name(self) -> &'static str {
        match self {
            Op::Mm => "mm",
            Op::Bmm => "bmm",
            Op::Addmm => "addmm",
            Op::Forward => "convolution forward",
            Op::BackwardData => "convolution backward-data",
            Op::BackwardWeight => "convolution backward-weight",
            Op::Sum => "sum",
            Op::Mean => "mean",
            Op::Amax => "amax",
            Op::Amin => "amin",
            Op::Argmax => "argmax",
            Op::Argmin => "argmin",
            Op::Logsumexp => "logsumexp",
            Op::Max => "max",
            Op::Min => "min",
        }
    }
}

/// All that the kernels of a call depend on.
pub struct Call<'a> {
    /// An operator of ours, which torch answers only where it must.
    pub own: bool,
    pub op: Op,
    pub cuda: bool,
    /// One or two, of the same type on the same device, with as many dimensions.
    pub operands: &'a [&'a Seen<'a>],
    /// Powers of two that divide the addresses of both operands and the result.
    pub alignments: [u8; 3],
    /// What else a convolution (see `How` in `convolution`) or a reduction (in `reductions`) has.
    pub how: &'a [i64],
    /// Do channels lie innermost? A convolution's operands say so by how they lie.
    pub last: bool,
}

/// The power of two that divides an address, at most that of 256 bytes. On the CPU operands are copied: where they begin matters to nobody.
pub fn aligned(cuda: bool, address: u64) -> u8 {
    if cuda { address.trailing_zeros().min(8) as u8 } else { 8 }
}

/// In the place of a call's alignments (exponents of two): torch computes it whatever they are.
pub const ANY: [u8; 3] = [15; 3];

impl Call<'_> {
    fn place(&self) -> String {
        if self.cuda { format!("cuda:{}", self.operands[0].device) } else { "cpu".into() }
    }
    /// The call as numbers; None where they do not fit, which no operator's do.
    #[inline(always)]
    fn key<const N: usize>(&self) -> Option<Key<N>> {
        let a = self.operands.first()?;
        let [x, y, z] = self.alignments.map(i64::from);
        let what = i64::from(self.own) | (self.op as i64) << 1 | i64::from(self.cuda) << 5 | (a.shape.len() as i64) << 6;
        let what = what | x << 13 | y << 17 | z << 21 | i64::from(a.dtype as u16) << 25 | i64::from(a.device as u16) << 41;
        let (mut words, mut count, mut hash) = ([0; N], 1, Key::<N>::mixed(0, what));
        words[0] = what;
        // A look-up belongs to every call: a plain loop without a question in it is a third as many instructions as iterators.
        let mut put = |part: &[i64]| {
            for (to, &word) in words.get_mut(count..count + part.len())?.iter_mut().zip(part) {
                *to = word;
                hash = Key::<N>::mixed(hash, word);
            }
            count += part.len();
            Some(())
        };
        for x in self.operands {
            put(x.shape)?;
            put(x.strides)?;
        }
        put(self.how)?;
        Some(Key { words, count, hash })
    }
}

/// Most numbers of a product or a reduction, and of a convolution. A convolution has three tensors of five dimensions with their
/// strides, and all else there is of it.
pub const PRODUCT: usize = 1 + 4 * 3;
pub const CONVOLUTION: usize = 1 + 6 * 5 + 1 + 3 * 3 + 1;

/// A call as numbers, of which `count` are used.
struct Key<const N: usize> {
    words: [i64; N],
    count: usize,
    hash: u64,
}

impl<const N: usize> Key<N> {
    const fn mixed(hash: u64, word: i64) -> u64 {
        (hash.rotate_left(23) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn used(&self) -> &[i64] {
        &self.words[..self.count.min(N)]
    }
}

/// A hash is its own hash: a look-up belongs to every call.
#[derive(Clone, Copy, Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
    fn write(&mut self, _: &[u8]) {}
}

type Known = HashMap<Box<[i64]>, Arc<Decided>>;
/// By hash; of calls with the same one the latest.
type LookedUp = HashMap<u64, (Box<[i64]>, Arc<Decided>), BuildHasherDefault<Same>>;

/// What is known of a call that was seen: operator, device, type, shapes of its operands, problem, calls, whether we answer, the reason if not.
pub type CallReport = (&'static str, String, &'static str, Vec<Vec<i64>>, String, u64, bool, String);

struct Decided {
    /// What runs it; None: torch.
    ours: Option<Arc<Ours>>,
    /// Torch computes it whatever addresses its operands have: the problem itself says so.
    torchs: bool,
    calls: AtomicU64,
    report: CallReport,
}

/// Kernels, and how many bytes of workspace a launch of them takes from torch's allocator.
pub struct Ours {
    pub kernels: Prepared,
    pub space: u64,
}

/// What has been decided so far.
pub struct Table {
    decide: Py<PyAny>,
    /// Counts how often all was forgotten: what threads have looked up is of one such time.
    time: AtomicU64,
    known: Mutex<Known>,
    /// Kept for graphs that have captured them.
    former: Mutex<Vec<Arc<Ours>>>,
}

thread_local! {
    static LOOKED_UP: RefCell<(u64, LookedUp)> = RefCell::default();
}

impl Table {
    pub fn new(decide: Py<PyAny>) -> Table {
        Table { decide, time: AtomicU64::new(1), known: Mutex::default(), former: Mutex::default() }
    }

    pub fn forget(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.extend(known.drain().filter_map(|(_, decided)| decided.ours.clone()));
        self.time.fetch_add(1, Ordering::Release);
    }

    pub fn reports(&self) -> Vec<CallReport> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let report = known.values().map(|decided| {
            let mut report = decided.report.clone();
            report.5 = decided.calls.load(Ordering::Relaxed);
            report
        });
        report.collect()
    }

    /// What this thread has looked up of a call, if `wanted`; it is counted.
    #[inline(always)]
    fn looked_up<T, const N: usize>(&self, key: &Key<N>, wanted: impl FnOnce(&Decided) -> Option<T>) -> Option<T> {
        let time = self.time.load(Ordering::Acquire);
        LOOKED_UP.with_borrow_mut(|(of, known)| {
            if *of != time {
                known.clear();
                *of = time;
            }
            let (_, decided) = known.get(&key.hash).filter(|(words, _)| **words == *key.used())?;
            let found = wanted(decided)?;
            decided.calls.fetch_add(1, Ordering::Relaxed);
            Some(found)
        })
    }

    /// Has this thread met the call, of `ANY` alignments and at most so many numbers, and does torch compute it?
    #[inline(always)]
    pub fn falls_back<const N: usize>(&self, call: &Call<'_>) -> bool {
        let key = call.key::<N>();
        key.is_some_and(|key| self.looked_up(&key, |decided| decided.ours.is_none().then_some(())).is_some())
    }

    /// Our kernels for a call, where it is ours; decided now if it is new.
    pub fn ours(&self, shim: &Shim, call: &Call<'_>) -> Result<Option<Arc<Ours>>, String> {
        let Some(key) = call.key::<CONVOLUTION>() else { return Ok(None) };
        if let Some(found) = self.looked_up(&key, |decided| Some(decided.ours.clone())) {
            return Ok(found);
        }
        let Some(dtype) = shim.dtype(call.operands[0].dtype) else { return Ok(None) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key.used()).cloned();
        let Some(decided) = known.map_or_else(|| self.ask(key.used(), dtype, call), |decided| Ok(Some(decided)))? else {
            return Ok(None);
        };
        decided.calls.fetch_add(1, Ordering::Relaxed);
        let ours = decided.ours.clone();
        LOOKED_UP.with_borrow_mut(|(_, known)| {
            let anywhere = Call { alignments: ANY, ..*call };
            if let Some(key) = anywhere.key::<CONVOLUTION>().filter(|_| decided.torchs) {
                known.insert(key.hash, (key.used().into(), decided.clone()));
            }
            known.insert(key.hash, (key.used().into(), decided));
        });
        Ok(ours)
    }

    /// Asks Python. None: not now.
    fn ask(&self, key: &[i64], dtype: &'static str, call: &Call<'_>) -> Result<Option<Arc<Decided>>, String> {
        let answer = Python::attach(|py| -> PyResult<Option<Decided>> {
            let alignments = call.alignments.map(|power| 1_u64 << power);
            let operands: Vec<_> = call.operands.iter().map(|x| (x.address, x.shape.to_vec(), x.strides.to_vec())).collect();
            let asked = (call.own, call.op.name(), call.place(), dtype, operands, alignments, call.last, call.how.to_vec());
            let answer = self.decide.bind(py).call1(asked)?;
            if answer.is_none() {
                return Ok(None);
            }
            let (problem, found, torchs) = answer.extract::<(String, Bound<'_, PyAny>, bool)>()?;
            let (ours, reason) = match found.cast::<PyPrepared>() {
                Ok(prepared) => {
                    let kernels = prepared.get().inner().clone();
                    let space = if call.cuda { kernels.workspace_bytes() } else { 0 };
                    (Some(Arc::new(Ours { kernels, space })), String::new())
                }
                Err(_) => (None, found.extract()?),
            };
            let shapes = call.operands.iter().map(|x| x.shape.to_vec()).collect();
            let report = (call.op.name(), call.place(), dtype, shapes, problem, 0, ours.is_some(), reason);
            Ok(Some(Decided { ours, torchs, calls: AtomicU64::new(0), report }))
        });
        let named = |py: Python<'_>, e: &PyErr| match e.get_type(py).name() {
            Ok(class) => format!("tilewright.{class}: {}", e.value(py)),
            Err(_) => e.to_string(),
        };
        let answer = answer.map_err(|e| Python::attach(|py| named(py, &e)))?;
        Ok(answer.map(|decided| {
            let decided = Arc::new(decided);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(key.into()).or_insert(decided).clone()
        }))
    }
}
