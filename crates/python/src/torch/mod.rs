//! Products, convolutions and reductions for PyTorch's dispatcher, without Python on the way: operators of our own, and in place of `aten`'s where torch is slower.
//! What is computed how is decided in Python (`python/tilewright/torch.py`) when a call is first seen, and looked up from then on.

mod calls;
mod convolution;
mod linear;
mod reductions;
mod shim;
mod table;

use crate::errors::DeviceError;
use calls::{ours, overrides};
use pyo3::prelude::*;
use shim::{Library, Shim};
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use table::{CallReport, Table};

/// Torch's functions, and what has been decided. Kernels have no other way to find them: torch hands them nothing of ours.
struct Home {
    shim: Shim,
    table: Table,
    reductions: reductions::Reductions,
    overrides: Mutex<Vec<Library>>,
}

static HOME: OnceLock<Home> = OnceLock::new();

/// Dispatch keys.
const KEYS: [&str; 2] = ["CPU", "CUDA"];

fn home() -> PyResult<&'static Home> {
    HOME.get().ok_or_else(|| DeviceError::new_err("tilewright.torch is not imported"))
}

fn failed(e: shim::ShimError) -> PyErr {
    DeviceError::new_err(e.to_string())
}

/// Gives `tilewright::mm`, `bmm` and `addmm` their kernels, and `aten::mkldnn_linear` (see `linear`); its gradient, too? `decide` is asked once
/// about each call that differs from those before.
#[pyfunction]
pub fn torch_register(decide: Py<PyAny>) -> PyResult<bool> {
    if let Some(home) = HOME.get() {
        return Ok(home.shim.has_lists());
    }
    let shim = Shim::find().map_err(failed)?;
    let reductions = reductions::Reductions::find(&shim);
    let home = HOME.get_or_init(|| Home { shim, table: Table::new(decide), reductions, overrides: Mutex::default() });
    let [cpu, cuda] = KEYS;
    // Older versions do not hand over which gradients are wanted.
    let known = usize::from(home.shim.has_lists());
    for (namespace, key, kernels) in [
        ("tilewright", cpu, &ours::<false>()[..]),
        ("tilewright", cuda, &ours::<true>()),
        ("aten", cpu, &[linear::forward::<false>()]),
        ("aten", cuda, &[linear::forward::<true>()]),
        ("aten", "AutogradCPU", &[linear::backward::<false>()][..known]),
        ("aten", "AutogradCUDA", &[linear::backward::<true>()][..known]),
    ] {
        let library = home.shim.library(namespace, key).map_err(failed)?;
        for (name, kernel) in kernels {
            library.implement(name, *kernel).map_err(failed)?;
        }
        // Stays for as long as the process.
        library.keep();
    }
    Ok(home.shim.has_lists())
}

/// Puts our kernels in the place of these of `aten`'s operators (products, `convolution`, `convolution_backward`, reductions), and of no others.
/// Gives those that this PyTorch lets us have.
#[pyfunction]
pub fn torch_override(operators: Vec<String>) -> PyResult<Vec<String>> {
    let home = home()?;
    let mut held = home.overrides.lock().unwrap_or_else(PoisonError::into_inner);
    // Taken away while the list is dropped.
    held.clear();
    let plain = |name: &CStr| String::from_utf8_lossy(name.to_bytes()).split('.').next().unwrap_or_default().to_owned();
    let mut placed = Vec::new();
    let (on_cpu, on_cuda) = (reductions::overrides::<false>(&home.reductions), reductions::overrides::<true>(&home.reductions));
    for (key, cuda, products, convolutions, reductions) in [
        (KEYS[0], false, overrides::<false>(), convolution::overrides::<false>(), on_cpu.collect::<Vec<_>>()),
        (KEYS[1], true, overrides::<true>(), convolution::overrides::<true>(), on_cuda.collect()),
    ] {
        if cuda && !home.shim.has_cuda() {
            continue;
        }
        let possible =
            products.into_iter().chain(convolutions.into_iter().filter(|_| home.shim.has_convolutions(cuda))).chain(reductions);
        // The name of a variant follows a dot.
        let mut wanted = possible.filter(|(name, _)| operators.contains(&plain(name))).peekable();
        if wanted.peek().is_some() {
            let library = home.shim.library("aten", key).map_err(failed)?;
            for (name, kernel) in wanted {
                library.implement(name, kernel).map_err(failed)?;
                placed.push(plain(name));
            }
            held.push(library);
        }
    }
    Ok(placed)
}

/// Decides every call anew when it is next seen: plans or records have changed.
#[pyfunction]
pub fn torch_forget() -> PyResult<()> {
    home().map(|home| home.table.forget())
}

/// Each call that was seen: operator, device, type, shapes of its operands, problem, how often, whether we answer it, and why not.
#[pyfunction]
pub fn torch_calls() -> PyResult<Vec<CallReport>> {
    home().map(|home| home.table.reports())
}
