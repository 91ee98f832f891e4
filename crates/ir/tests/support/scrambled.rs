//! Kernels with numbers changed anywhere: nearly all of them are wrong.

use tilewright_ir::Kernel;

/// Changes numbers anywhere in a kernel: handles, types' lanes, constants, strides, boxes, thread counts.
pub fn scrambled(kernel: &Kernel, changes: &[(usize, i64)]) -> Option<Kernel> {
    fn numbers<'v>(v: &'v mut serde_json::Value, out: &mut Vec<&'v mut serde_json::Value>) {
        match v {
            serde_json::Value::Number(_) => out.push(v),
            serde_json::Value::Array(a) => a.iter_mut().for_each(|v| numbers(v, out)),
            serde_json::Value::Object(o) => o.values_mut().for_each(|v| numbers(v, out)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(kernel).ok()?;
    let mut places = Vec::new();
    numbers(&mut value, &mut places);
    let n = places.len();
    for (at, to) in changes {
        *places[at % n] = (*to).into();
    }
    serde_json::from_value(value).ok()
}
