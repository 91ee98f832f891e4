//! What is known of a value before it is computed: its sizes, or its few elements.

use rten_onnx::onnx::{DataType, TensorProto};
use rten_shape_inference::{Constant, SymExpr, SymTensor};

/// Largest dimension: the rules compute with 32 bits.
const LARGEST: i32 = 1 << 28;

/// Longest vector whose values are followed: those of shapes.
const VALUES: u64 = 64;

/// What is known of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Its sizes.
    Shape(Vec<u64>),
    /// Its elements, along one dimension.
    Vector(Vec<i64>),
    /// Its elements, along one dimension, where they are no whole numbers: factors of sizes.
    Reals(Vec<f32>),
    /// Its only element.
    Scalar(i64),
    /// Nothing.
    Unknown,
}

impl Value {
    pub fn sizes(self) -> Option<Vec<u64>> {
        match self {
            Value::Shape(sizes) => Some(sizes),
            Value::Vector(values) => Some(vec![values.len() as u64]),
            Value::Reals(values) => Some(vec![values.len() as u64]),
            Value::Scalar(_) => Some(Vec::new()),
            Value::Unknown => None,
        }
    }
    /// It has more elements than 32 bits count.
    pub fn is_huge(&self) -> bool {
        let Value::Shape(sizes) = self else { return false };
        count(sizes).is_none_or(|count| count > i32::MAX as u64)
    }
    /// As the rules take it: with 32 bits, in which "to the end" is written as the largest numbers there are.
    pub fn symbolic(&self) -> Result<SymTensor, String> {
        let small = |v: i64| SymExpr::Value(v.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
        Ok(match self {
            Value::Shape(sizes) => {
                let small = |s: &u64| i32::try_from(*s).ok().filter(|s| *s <= LARGEST);
                let size = |s: &u64| small(s).map(SymExpr::Value).ok_or_else(|| format!("a dimension of {s}"));
                SymTensor::from_shape(sizes.iter().map(size).collect::<Result<_, _>>()?)
            }
            Value::Vector(values) => SymTensor::from_vec(values.iter().map(|v| small(*v)).collect()),
            Value::Reals(values) => SymTensor::from_shape(vec![small(values.len() as i64)]),
            Value::Scalar(value) => SymTensor::from_scalar(small(*value)),
            Value::Unknown => SymTensor::unknown("not inferred"),
        })
    }
    pub fn of(tensor: SymTensor) -> Result<Value, String> {
        let tensor = tensor.simplify();
        if let Some(constant) = tensor.to_constant() {
            return Ok(match constant {
                Constant::Scalar(value) => Value::Scalar(value.into()),
                Constant::Vector(values) => Value::Vector(values.into_iter().map(i64::from).collect()),
            });
        }
        let Some(sizes) = tensor.shape() else { return Ok(Value::Unknown) };
        let mut known = Vec::new();
        for size in sizes {
            let SymExpr::Value(size) = size else { return Ok(Value::Unknown) };
            known.push(u64::try_from(size).map_err(|_| format!("an output would have a dimension of {size}"))?);
        }
        Ok(Value::Shape(known))
    }
}

/// Elements of so many sizes; none where they are beyond 64 bits.
pub(crate) fn count(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
}

/// The value of a tensor that the model holds: numbers where it is short and whole, else its shape.
pub(crate) fn constant(tensor: &TensorProto) -> Result<Value, String> {
    let sizes = tensor.dims.iter().map(|d| u64::try_from(*d).map_err(|_| format!("a dimension of {d}")));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let count = count(&sizes).ok_or("more elements than can be counted")?;
    let whole = matches!(tensor.data_type, Some(DataType::INT64 | DataType::INT32));
    let real = tensor.data_type == Some(DataType::FLOAT) && sizes.len() == 1;
    if !(whole || real) || sizes.len() > 1 || count > VALUES {
        return Ok(Value::Shape(sizes));
    }
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    if real {
        let values: Vec<f32> = match raw.as_deref() {
            Some(raw) => raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            None => tensor.float_data.clone(),
        };
        // Weights may be without values: only their shape is read.
        return Ok(if values.len() as u64 == count { Value::Reals(values) } else { Value::Shape(sizes) });
    }
    let values: Vec<i64> = match (raw.as_deref(), tensor.data_type) {
        (Some(raw), Some(DataType::INT64)) => {
            raw.chunks_exact(8).map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect()
        }
        (Some(raw), _) => raw.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
        (None, Some(DataType::INT64)) => tensor.int64_data.clone(),
        (None, _) => tensor.int32_data.iter().map(|v| i64::from(*v)).collect(),
    };
    if values.len() as u64 != count {
        // Data beside the file, or less than the shape says.
        return if tensor.external_data.is_empty() {
            Err(format!("{} values for {count} elements", values.len()))
        } else {
            Ok(Value::Shape(sizes))
        };
    }
    Ok(if sizes.is_empty() { Value::Scalar(values[0]) } else { Value::Vector(values) })
}
