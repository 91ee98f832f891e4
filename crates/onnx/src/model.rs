//! A model's graph with the shape of every value, once free dimensions are bound.

use crate::infer;
use crate::value::{Value, constant};
use crate::wire;
use crate::{OnnxError, Options};
use rten_onnx::onnx::{DataType, Dimension, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tilewright_ir::Scalar;

/// A graph whose shapes are known as far as they can be.
pub(crate) struct Graph {
    pub file: String,
    pub nodes: Vec<NodeProto>,
    /// Sizes of values by name; none where they are not known.
    pub shapes: HashMap<String, Vec<u64>>,
    /// Elements of values along one dimension that are known: sizes and axes.
    pub numbers: HashMap<String, Vec<i64>>,
    /// How many nodes read a value; the graph's outputs count as read twice, so that nothing is folded over them.
    pub readers: HashMap<String, usize>,
    pub dtype: Scalar,
}

/// Parses, binds and infers.
pub(crate) fn load(file: &str, bytes: &[u8], options: &Options) -> Result<Graph, OnnxError> {
    let malformed = |reason: String| OnnxError::Malformed { file: file.into(), reason };
    wire::check(bytes).map_err(&malformed)?;
    let model = ModelProto::parse_buf(bytes).map_err(|e| malformed(e.to_string()))?;
    let graph = model.graph.ok_or_else(|| malformed("there is no graph in it".into()))?;
    if graph.node.is_empty() {
        return Err(malformed("its graph has no node".into()));
    }
    let mut values: HashMap<String, Value> = HashMap::new();
    let mut constants = HashSet::new();
    for tensor in &graph.initializer {
        let name = tensor.name.clone().unwrap_or_default();
        values.insert(name.clone(), constant(tensor).map_err(|e| malformed(format!("initializer {name}: {e}")))?);
        constants.insert(name);
    }
    let inputs: Vec<&ValueInfoProto> =
        graph.input.iter().filter(|i| i.name.as_ref().is_some_and(|n| !constants.contains(n))).collect();
    let Bound { inputs: sizes, batch } = bind(file, &inputs, options)?;
    for (name, shape) in sizes {
        values.insert(name, Value::Shape(shape));
    }
    let dtype = options.dtype.map_or_else(|| element_type(file, &inputs, &graph.initializer), Ok)?;
    let opset = model.opset_import.iter().filter(|o| o.domain.as_deref().unwrap_or("").is_empty());
    let opset = opset.filter_map(|o| o.version).max().unwrap_or(1);
    let mut readers: HashMap<String, usize> = HashMap::new();
    for node in &graph.node {
        let called = called(node);
        node.input.iter().filter(|i| !i.is_empty()).for_each(|i| *readers.entry(i.clone()).or_default() += 1);
        // The rules compute with 32 bits; sizes are bounded ahead of them, and what they may still panic at is no model.
        let fixed = node.input.get(1).is_none_or(|name| constants.contains(name));
        let outputs = catch_unwind(AssertUnwindSafe(|| infer::outputs(node, &values, opset, batch.filter(|_| fixed))));
        let outputs = outputs.unwrap_or_else(|_| Err("its sizes are beyond what can be computed with".into()));
        let outputs = outputs.map_err(|e| malformed(format!("node {called}: {e}")))?;
        if node.op_type.as_deref() == Some("Constant") {
            constants.extend(node.output.iter().cloned());
        }
        for (name, value) in node.output.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
            values.insert(name.clone(), value);
        }
    }
    graph.output.iter().filter_map(|o| o.name.clone()).for_each(|o| *readers.entry(o).or_default() += 2);
    let numbers = values.iter().filter_map(|(name, value)| match value {
        Value::Vector(numbers) => Some((name.clone(), numbers.clone())),
        Value::Scalar(number) => Some((name.clone(), vec![*number])),
        _ => None,
    });
    let numbers = numbers.collect();
    let shapes = values.into_iter().filter_map(|(name, value)| Some((name, value.sizes()?))).collect();
    Ok(Graph { file: file.into(), nodes: graph.node, shapes, numbers, readers, dtype })
}

/// What a node is called: its name, else its first output, and its operator.
pub(crate) fn called(node: &NodeProto) -> String {
    let name = node.name.as_deref().filter(|n| !n.is_empty()).or(node.output.first().map(String::as_str));
    format!("{} ({})", name.unwrap_or("without a name"), node.op_type.as_deref().unwrap_or("no operator"))
}

/// What the options make of a model's inputs.
struct Bound {
    /// Their names and sizes.
    inputs: Vec<(String, Vec<u64>)>,
    /// A fixed first dimension that the options change, with what takes its place.
    batch: Option<(u64, u64)>,
}

/// Sizes of the inputs, with free dimensions as the options say.
fn bind(file: &str, inputs: &[&ValueInfoProto], options: &Options) -> Result<Bound, OnnxError> {
    let (mut bound, mut free, mut listed, mut batch) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut used: HashSet<&str> = HashSet::new();
    for input in inputs {
        let name = input.name.clone().unwrap_or_default();
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(shape) = tensor.and_then(|t| t.shape.as_ref()) else { continue };
        let (mut sizes, mut words) = (Vec::new(), Vec::new());
        for (n, dim) in shape.dim.iter().enumerate() {
            let Dimension { dim_value, dim_param } = dim;
            let place = format!("{name}.{n}");
            let param = dim_param.as_deref().filter(|p| !p.is_empty());
            let given = |wanted: &str| options.dims.iter().find(|(known, _)| known == wanted);
            let fixed = dim_value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0);
            words.push(fixed.map_or_else(|| param.unwrap_or("?").to_string(), |v| v.to_string()));
            match given(&place).or_else(|| param.and_then(given)) {
                Some((known, size)) => {
                    used.insert(known);
                    sizes.push(*size);
                    batch = batch.or(fixed.filter(|was| n == 0 && was != size).map(|was| (was, *size)));
                }
                None => match fixed {
                    Some(size) => sizes.push(size),
                    None => {
                        let known = param.map_or_else(|| place.clone(), |p| format!("{p} ({place})"));
                        if !free.iter().any(|f: &String| f.split(' ').next() == known.split(' ').next()) {
                            free.push(known);
                        }
                    }
                },
            }
        }
        listed.push(format!("{name} [{}]", words.join(", ")));
        bound.push((name, sizes));
    }
    if let Some((name, _)) = options.dims.iter().find(|(name, _)| !used.contains(name.as_str())) {
        return Err(OnnxError::NoSuchDimension { file: file.into(), name: name.clone(), inputs: listed.join(", ") });
    }
    if free.is_empty() { Ok(Bound { inputs: bound, batch }) } else { Err(OnnxError::Free { file: file.into(), free }) }
}

/// The floating-point type of the first input that has one, else of the first weight.
fn element_type(file: &str, inputs: &[&ValueInfoProto], weights: &[TensorProto]) -> Result<Scalar, OnnxError> {
    let of_inputs = inputs.iter().filter_map(|i| i.r#type.as_ref()?.tensor_type.as_ref()?.elem_type);
    let mut found = None;
    for ty in of_inputs.chain(weights.iter().filter_map(|w| w.data_type)) {
        let scalar = match ty {
            DataType::FLOAT => Scalar::F32,
            DataType::FLOAT16 => Scalar::F16,
            DataType::BFLOAT16 => Scalar::BF16,
            DataType::DOUBLE => Scalar::F64,
            other => {
                found = found.or(other.name().map(str::to_lowercase));
                continue;
            }
        };
        return Ok(scalar);
    }
    Err(OnnxError::Dtype { file: file.into(), found: found.unwrap_or_else(|| "of no known type".into()) })
}
