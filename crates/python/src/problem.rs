//! From keyword arguments to problems, told as their text.

use crate::errors::{ProblemError, raised};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use tilewright::fields::{Draft, Given, Of, Refused};
use tilewright::{Dtype, Problem, Scalar};

/// The name of 64-bit integers, which are values of reductions alone.
const INT64: &str = "int64";

/// The name that arrays have for a type.
fn array_name(scalar: Scalar) -> &'static str {
    let plain = Dtype::ALL.into_iter().find(|dtype| dtype.is_plain() && dtype.scalar == scalar);
    plain.and_then(|dtype| dtype.aliases().first().copied()).unwrap_or(INT64)
}

/// The name that arrays have for a type of any spelling; a name that is none is given back.
#[pyfunction]
pub fn array_dtype(name: &str) -> String {
    match Dtype::named(name) {
        Some(dtype) if dtype.is_plain() => array_name(dtype.scalar).into(),
        Some(dtype) if dtype.complex && dtype.is_one_number() => dtype.name().into(),
        _ if name == "i64" => INT64.into(),
        _ => name.into(),
    }
}

/// The text of a field's value; none for None and False.
fn text(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(is) = value.cast::<PyBool>() {
        return Ok(is.is_true().then(|| "1".to_string()));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let each = value.try_iter()?.map(|each| text(&each?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(Some(each.into_iter().flatten().collect::<Vec<_>>().join(",")));
    }
    Ok(Some(value.str()?.to_cow()?.into_owned()))
}

/// The text of a product (`gemm`), a convolution (`conv`) or a reduction (`reduce`) with these fields. None and False are a field's default.
#[pyfunction]
#[pyo3(signature = (kind, **fields))]
pub fn problem(kind: &str, fields: Option<&Bound<'_, PyDict>>) -> PyResult<String> {
    let of = Of::ALL.into_iter().find(|of| of.name() == kind);
    let of = of.ok_or_else(|| ProblemError::new_err(format!("kind = {kind:?}: gemm, conv or reduce is needed")))?;
    let mut given = Vec::new();
    for (name, value) in fields.into_iter().flatten() {
        let name: String = name.extract()?;
        let field = of.field(&name).ok_or_else(|| ProblemError::new_err(format!("{kind} has no field {name}")))?;
        given.extend(text(&value)?.map(|value| Given { field, value }));
    }
    let refused = |Refused { given, reason }: Refused| {
        let keyword = if given.field.python.is_empty() { given.field.name } else { given.field.python };
        ProblemError::new_err(format!("{keyword} = {:?}: {reason}", given.value))
    };
    let draft = Draft::of(of, given).map_err(refused)?;
    Ok(draft.build().map_err(|e| raised(e.into()))?.key())
}

/// Shape and type of the values of each of a problem's reductions; `batched`: batch entries are an axis.
#[pyfunction]
pub fn values(problem: &str, batched: bool) -> PyResult<Vec<(Vec<u64>, &'static str)>> {
    let problem = Problem::parse(problem).map_err(|e| raised(e.into()))?;
    let shape = problem.result_shape();
    let (of, groups) = (shape.extents, shape.groups.max(1));
    let listed = problem.reductions().iter().map(|r| {
        let ([rows, columns], [no_m, no_n]) = (shape.each(r.over), r.over.whole());
        let left = |gone: bool, extent: u64, block: u64| (!gone).then(|| extent / block.max(1));
        let (m, n) = (left(no_m, of.m, rows), left(no_n, of.n, columns));
        // Channels of all groups form one dimension if nothing separates them.
        let channels = if m.is_none() { n.map(|n| n * groups) } else { None };
        let apart = (groups > 1 && channels.is_none()).then_some(groups);
        let batch = (batched && !r.over.g).then_some(of.g / groups);
        let sizes = [batch, apart, m, channels.or(n)].into_iter().flatten().collect();
        Ok((sizes, array_name(r.scalar(problem.accumulator()))))
    });
    listed.collect()
}
