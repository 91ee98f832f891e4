//! Shapes of a node's outputs from those of its inputs, by the rules of `rten-shape-inference`.

use crate::value::{self, Value, constant};
use rten_onnx::onnx::{AttributeProto, NodeProto};
use rten_shape_inference::ops::*;
use rten_shape_inference::{BinaryOp, InferShapes, InferShapesContext, ReductionOp, SymTensor, SymbolGen, UnaryOp, VariadicOp};
use std::collections::HashMap;

/// Largest stride, dilation, padding and extent of a window.
const LARGEST_STEP: usize = 1 << 16;

/// A node's attributes.
pub(crate) struct Attributes<'a>(pub &'a NodeProto);

impl<'a> Attributes<'a> {
    pub fn find(&self, name: &str) -> Option<&'a AttributeProto> {
        self.0.attribute.iter().find(|a| a.name.as_deref() == Some(name))
    }
    pub fn int(&self, name: &str) -> Option<i64> {
        self.find(name)?.i
    }
    pub fn float(&self, name: &str) -> Option<f32> {
        self.find(name)?.f
    }
    pub fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.find(name).map(|a| a.ints.as_slice())
    }
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.find(name)?.s.as_deref()
    }
    fn small(&self, name: &str, otherwise: i64) -> Result<i32, String> {
        let value = self.int(name).unwrap_or(otherwise);
        i32::try_from(value).map_err(|_| format!("{name} is {value}"))
    }
    /// Sizes along spatial dimensions; the same one for each where there is none.
    pub fn spatial(&self, name: &str, dims: usize, otherwise: usize) -> Result<Vec<usize>, String> {
        let Some(given) = self.ints(name).filter(|g| !g.is_empty()) else { return Ok(vec![otherwise; dims]) };
        let sizes = given.iter().map(|v| usize::try_from(*v).ok().filter(|v| *v <= LARGEST_STEP));
        sizes.collect::<Option<Vec<_>>>().filter(|s| s.len() == dims).ok_or_else(|| format!("{name} is {given:?}"))
    }
}

/// Spatial dimensions of a node's input, where its shape is known.
fn spatial_dims(inputs: &[Option<SymTensor>]) -> Option<usize> {
    inputs.first()?.as_ref()?.ndim().map(|n| n.saturating_sub(2))
}

/// The outputs of a node whose operator has a rule; unknown ones else. `batch`: the file's first dimension and the one that took its place.
pub(crate) fn outputs(
    node: &NodeProto,
    values: &HashMap<String, Value>,
    opset: i64,
    batch: Option<(u64, u64)>,
) -> Result<Vec<Value>, String> {
    let op = node.op_type.as_deref().unwrap_or_default();
    let a = Attributes(node);
    let unknown = vec![Value::Unknown; node.output.len()];
    if !matches!(node.domain.as_deref().unwrap_or(""), "" | "ai.onnx") {
        return Ok(unknown);
    }
    if op == "Constant" {
        return Ok(vec![match (a.find("value").and_then(|v| v.t.as_ref()), a.int("value_int"), a.ints("value_ints")) {
            (Some(tensor), ..) => constant(tensor)?,
            (_, Some(value), _) => Value::Scalar(value),
            (.., Some(values)) => Value::Vector(values.to_vec()),
            _ => Value::Unknown,
        }]);
    }
    let mut inputs = Vec::new();
    for name in &node.input {
        let value = if name.is_empty() { None } else { Some(values.get(name).unwrap_or(&Value::Unknown).symbolic()?) };
        inputs.push(value);
    }
    // What older operator sets say by attributes newer ones say by inputs.
    let by_input = |inputs: &mut Vec<Option<SymTensor>>, name: &str| -> Result<(), String> {
        if let (1, Some(given)) = (inputs.len(), a.ints(name)) {
            inputs.push(Some(Value::Vector(given.to_vec()).symbolic()?));
        }
        Ok(())
    };
    match op {
        "Reshape" => {
            by_input(&mut inputs, "shape")?;
            if let Some(target) = of_batch(node, &a, values, batch) {
                inputs.truncate(1);
                inputs.push(Some(Value::Vector(target).symbolic()?));
            }
        }
        "Squeeze" | "Unsqueeze" => by_input(&mut inputs, "axes")?,
        "Pad" => by_input(&mut inputs, "pads")?,
        "Split" => by_input(&mut inputs, "split")?,
        "Slice" if opset < 10 => {
            for name in ["starts", "ends", "axes"] {
                if let Some(given) = a.ints(name) {
                    inputs.push(Some(Value::Vector(given.to_vec()).symbolic()?));
                }
            }
        }
        _ => {}
    }
    if let Some(sizes) = resized(op, node, values, opset)? {
        return Ok(vec![Value::Shape(sizes)]);
    }
    // The rule is that of later sets, which give sizes as well.
    if op == "Resize" && opset < 11 {
        return Ok(unknown);
    }
    // These rules multiply all sizes.
    if matches!(op, "Reshape" | "Flatten" | "Size")
        && node.input.first().is_some_and(|i| values.get(i).is_some_and(Value::is_huge))
    {
        return Ok(unknown);
    }
    let Some(found) = apply(op, &a, &inputs, node.output.len())? else { return Ok(unknown) };
    let mut found = found.into_iter().map(Value::of).collect::<Result<Vec<_>, _>>()?;
    if op == "Reshape"
        && let (Some(Some(Value::Shape(from))), Some(Value::Shape(to))) =
            (node.input.first().map(|i| values.get(i)), found.first())
        && value::count(from) != value::count(to)
    {
        let message = format!("values of {from:?} cannot take the shape {to:?}");
        return Err(match batch {
            None => message,
            Some((was, _)) => format!(
                "{message}, which the file fixes for a first dimension of {was}: leave that as it is, or export the model with a free one"
            ),
        });
    }
    found.resize(node.output.len().max(found.len()), Value::Unknown);
    Ok(found)
}

/// The shape to take where the file has the constant one of another batch.
fn of_batch(
    node: &NodeProto,
    a: &Attributes<'_>,
    values: &HashMap<String, Value>,
    batch: Option<(u64, u64)>,
) -> Option<Vec<i64>> {
    let (was, now) = batch?;
    let Value::Shape(from) = values.get(node.input.first()?)? else { return None };
    let target = match node.input.get(1).map(|name| values.get(name)) {
        Some(Some(Value::Vector(target))) => target,
        None => a.ints("shape")?,
        _ => return None,
    };
    let (first, rest) = target.split_first()?;
    if from.first() != Some(&now) || u64::try_from(*first).ok()? != was {
        return None;
    }
    let taken: Vec<i64> = std::iter::once(now as i64).chain(rest.iter().copied()).collect();
    let sizes = taken.iter().map(|d| u64::try_from(*d).ok().filter(|d| *d > 0)).collect::<Option<Vec<_>>>();
    let fits = rest.contains(&-1) || sizes.is_some_and(|sizes| value::count(&sizes) == value::count(from));
    fits.then_some(taken)
}

/// Sizes of an image that is made larger by factors; `None` where sizes are given, or nothing is known.
fn resized(op: &str, node: &NodeProto, values: &HashMap<String, Value>, opset: i64) -> Result<Option<Vec<u64>>, String> {
    let at = match op {
        "Upsample" => 1,
        "Resize" if opset < 11 => 1,
        "Resize" if node.input.get(3).is_none_or(String::is_empty) => 2,
        _ => return Ok(None),
    };
    let known = |n: usize| values.get(node.input.get(n)?);
    let (Some(Value::Shape(from)), Some(Value::Reals(factors))) = (known(0), known(at)) else { return Ok(None) };
    if from.len() != factors.len() {
        return Ok(None);
    }
    // As ONNX has it: rounded down.
    let sizes = from.iter().zip(factors).map(|(size, factor)| (*size as f64 * f64::from(*factor)).floor());
    let counted = |size: f64| (1.0..=f64::from(1 << 28)).contains(&size).then_some(size as u64);
    sizes.map(counted).collect::<Option<Vec<_>>>().map(Some).ok_or_else(|| format!("factors {factors:?} of sizes {from:?}"))
}

/// Operators whose first output has the shape of their first input.
const SAME_SHAPE: &[&str] = &[
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Elu",
    "Selu",
    "Gelu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "Clip",
    "Softmax",
    "LogSoftmax",
    "LRN",
    "BatchNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "GroupNormalization",
    "Erf",
    "Sqrt",
    "Exp",
    "Log",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Not",
    "Reciprocal",
    "Sin",
    "Cos",
    "Softplus",
    "Softsign",
    "Mish",
    "CumSum",
    "Trilu",
    "Sign",
    "Dropout",
];

/// Applies the operator's rule; `None` where there is none.
fn apply(op: &str, a: &Attributes<'_>, inputs: &[Option<SymTensor>], outputs: usize) -> Result<Option<Vec<SymTensor>>, String> {
    let run = |rule: &dyn InferShapes| {
        rule.infer_shapes(InferShapesContext::new(inputs), &mut SymbolGen::new()).map(Some).map_err(|e| e.to_string())
    };
    match op {
        op if SAME_SHAPE.contains(&op) => run(&UnaryOp),
        "Identity" | "Cast" => run(&Identity),
        "Neg" => run(&Neg),
        "Add" => run(&Add),
        "Sub" => run(&Sub),
        "Mul" => run(&Mul),
        "Div" => run(&Div),
        "Equal" => run(&Equal),
        "Pow" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "And" | "Or" | "Xor" | "Mod" => run(&BinaryOp),
        "Min" | "Max" | "Sum" | "Mean" => run(&VariadicOp),
        "Where" => run(&Where),
        "Conv" | "MaxPool" | "AveragePool" | "LpPool" | "ConvTranspose" => windows(op, a, inputs),
        "GlobalAveragePool" | "GlobalMaxPool" => run(&GlobalPool),
        "Gemm" => run(&Gemm { transpose_a: a.int("transA") == Some(1), transpose_b: a.int("transB") == Some(1) }),
        "MatMul" => run(&MatMul),
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare"
        | "ReduceLogSumExp" => {
            let axes = a.ints("axes").map(|axes| axes.iter().map(|v| i32::try_from(*v)).collect::<Result<Vec<_>, _>>());
            let axes = axes.transpose().map_err(|e| e.to_string())?;
            run(&ReductionOp { axes: axes.as_deref(), keep_dims: a.int("keepdims") != Some(0) })
        }
        "ArgMax" | "ArgMin" => run(&ReductionOp { axes: Some(&[a.small("axis", 0)?]), keep_dims: a.int("keepdims") != Some(0) }),
        "Concat" => run(&Concat { axis: a.small("axis", 0)? }),
        "Tile" => run(&Tile),
        "Gather" => run(&Gather { axis: a.small("axis", 0)? }),
        "GatherElements" => run(&GatherElements),
        "Slice" => run(&Slice),
        "Split" => run(&Split { axis: a.small("axis", 0)?, num_outputs: Some(outputs as u32) }),
        "Flatten" => run(&Flatten { axis: a.small("axis", 1)? }),
        "Reshape" => run(&Reshape { allow_zero: a.int("allowzero") == Some(1) }),
        "Shape" => {
            let bound = |name: &str| a.int(name).map(|v| i32::try_from(v).map_err(|_| format!("{name} is {v}"))).transpose();
            run(&Shape { start: bound("start")?, end: bound("end")? })
        }
        "Size" => run(&Size),
        "Squeeze" => run(&Squeeze),
        "Unsqueeze" => run(&Unsqueeze),
        "Transpose" => {
            let perm = a.ints("perm").map(|p| p.iter().map(|v| usize::try_from(*v)).collect::<Result<Vec<_>, _>>());
            let perm = perm.transpose().map_err(|e| format!("perm: {e}"))?;
            run(&Transpose { perm: perm.as_deref() })
        }
        "Expand" => run(&Expand),
        "ConstantOfShape" => {
            let value = a.find("value").and_then(|v| v.t.as_ref()).map(constant).transpose()?;
            let value = match value {
                Some(Value::Vector(v)) => v.first().and_then(|v| i32::try_from(*v).ok()),
                _ => None,
            };
            run(&ConstantOfShape { value })
        }
        "Range" => run(&Range),
        "Pad" => run(&Pad),
        "Resize" => run(&Resize),
        _ => Ok(None),
    }
}

/// Operators that move a window.
fn windows(op: &str, a: &Attributes<'_>, inputs: &[Option<SymTensor>]) -> Result<Option<Vec<SymTensor>>, String> {
    let Some(dims) = spatial_dims(inputs) else { return Ok(None) };
    let (strides, dilations) = (a.spatial("strides", dims, 1)?, a.spatial("dilations", dims, 1)?);
    if strides.contains(&0) || dilations.contains(&0) {
        return Err("a stride or a dilation of 0".into());
    }
    let pads = a.spatial("pads", 2 * dims, 0)?;
    let padding = match a.text("auto_pad").unwrap_or("NOTSET") {
        "SAME_UPPER" | "SAME_LOWER" => Padding::Same,
        _ => Padding::Fixed(&pads),
    };
    let (strides, dilations) = (&strides[..], &dilations[..]);
    let run = |rule: &dyn InferShapes| {
        rule.infer_shapes(InferShapesContext::new(inputs), &mut SymbolGen::new()).map(Some).map_err(|e| e.to_string())
    };
    match op {
        "Conv" => run(&Conv { dilations, padding, strides }),
        "ConvTranspose" => {
            let groups = usize::try_from(a.int("group").unwrap_or(1)).map_err(|e| format!("group: {e}"))?;
            let output_padding = a.find("output_padding").map(|_| a.spatial("output_padding", dims, 0)).transpose()?;
            run(&ConvTranspose { groups, padding, strides, dilations, output_padding: output_padding.as_deref() })
        }
        _ => {
            let kernel_size = a.spatial("kernel_shape", dims, 1)?;
            let ceil_mode = a.int("ceil_mode") == Some(1);
            run(&Pool { dilations, kernel_size: &kernel_size, padding, strides, ceil_mode })
        }
    }
}
