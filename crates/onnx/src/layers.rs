//! From nodes to problems, with the nodes that follow them folded into their epilogue.

use crate::gated::{Gated, gated};
use crate::infer::Attributes;
use crate::model::{Graph, called};
use crate::{Layer, Model, OnnxError, Options};
use rten_onnx::onnx::NodeProto;
use tilewright_problem::{
    Activation, Along, Conv, ConvBuilder, Gemm, GemmBuilder, Layout, Operator, Problem, ProblemError, Reduce,
};

/// A problem that may get a bias and an activation yet.
enum Open {
    Gemm(Box<GemmBuilder>, u64),
    Conv(Box<ConvBuilder>, u64),
}

impl Open {
    fn activation(self, activation: Activation) -> Open {
        match self {
            Open::Gemm(g, n) => Open::Gemm(Box::new(g.activation(activation)), n),
            Open::Conv(c, k) => Open::Conv(Box::new(c.activation(activation)), k),
        }
    }
    fn bias(self) -> Open {
        match self {
            Open::Gemm(g, n) => Open::Gemm(Box::new(g.bias(Along::N)), n),
            Open::Conv(c, k) => Open::Conv(Box::new(c.bias()), k),
        }
    }
    fn build(self) -> Result<Problem, ProblemError> {
        match self {
            Open::Gemm(g, _) => g.build().map(Problem::Gemm),
            Open::Conv(c, _) => c.build().map(Problem::Conv),
        }
    }
}

/// The problems of a graph.
pub(crate) fn extract(graph: &Graph, options: &Options) -> Result<Model, OnnxError> {
    let mut model = Model::default();
    let pairs: Vec<Gated<'_>> = gated(graph).into_iter().filter(|pair| gated_problem(graph, pair).is_some()).collect();
    for node in &graph.nodes {
        if pairs.iter().any(|pair| std::ptr::eq(pair.up, node)) {
            continue;
        }
        if let Some(pair) = pairs.iter().find(|pair| std::ptr::eq(pair.gate, node)) {
            let problem = gated_problem(graph, pair);
            model.layers.extend(problem.map(|problem| layer(node, pair.operators(graph), problem)));
            continue;
        }
        let op = node.op_type.as_deref().unwrap_or_default();
        // What is computed of sizes is no layer.
        let of_sizes = node.input.first().is_some_and(|name| graph.numbers.contains_key(name));
        let folded = |open: Result<(Open, bool), String>| {
            let (open, folded) = open.map(|(open, biased)| fold(graph, node, open, biased))?;
            Ok((open.build().map_err(|e| e.to_string())?, folded))
        };
        let built = match op {
            "Conv" => folded(conv(graph, node, options.layout.unwrap_or(Layout::Nchw))),
            "Gemm" => folded(gemm(graph, node)),
            "MatMul" => folded(matmul(graph, node)),
            _ if of_sizes => continue,
            "ReduceSum" => reduce(graph, node, Operator::Sum),
            "ReduceMean" | "GlobalAveragePool" => reduce(graph, node, Operator::Mean),
            "ReduceMax" | "GlobalMaxPool" => reduce(graph, node, Operator::Max),
            "ReduceMin" => reduce(graph, node, Operator::Min),
            "ReduceSumSquare" => reduce(graph, node, Operator::SumSq),
            "ReduceL2" => reduce(graph, node, Operator::Norm2),
            "ReduceLogSumExp" => reduce(graph, node, Operator::LogSumExp),
            "ArgMax" => reduce(graph, node, Operator::ArgMax),
            "ArgMin" => reduce(graph, node, Operator::ArgMin),
            "ReduceProd" | "ReduceL1" | "ReduceLogSum" | "ConvTranspose" | "MatMulInteger" | "ConvInteger" | "QLinearConv"
            | "QLinearMatMul" | "Einsum" | "LSTM" | "GRU" | "RNN" | "Attention" => {
                Err("there is no problem for this operator yet".into())
            }
            _ => continue,
        };
        match built {
            Ok((problem, folded)) => model.layers.push(layer(node, folded, problem)),
            Err(reason) => model.skipped.push(format!("{}: {reason}", called(node))),
        }
    }
    if model.layers.is_empty() {
        let reason = match model.skipped.first() {
            Some(first) => format!("none of its nodes can be tuned; {first}"),
            None => "it has no convolution, no matrix product and no reduction".into(),
        };
        return Err(OnnxError::Malformed { file: graph.file.clone(), reason });
    }
    Ok(model)
}

fn layer(node: &NodeProto, folded: Vec<String>, problem: Problem) -> Layer {
    let name = called(node);
    let name = name.rsplit_once(" (").map_or(name.as_str(), |(name, _)| name).to_string();
    Layer { name, op: node.op_type.clone().unwrap_or_default(), folded, problem }
}

/// The product of a gated MLP with two weights; none where they or the results differ in shape, or where something is added or multiplied.
fn gated_problem(graph: &Graph, pair: &Gated<'_>) -> Option<Problem> {
    let product = |node: &NodeProto| match node.op_type.as_deref() {
        Some("MatMul") => matmul(graph, node),
        _ => gemm(graph, node),
    };
    let plain = |node: &NodeProto| Attributes(node).float("alpha").is_none_or(|alpha| alpha == 1.0);
    let result = |node: &NodeProto| node.output.first().and_then(|name| graph.shapes.get(name));
    if !plain(pair.gate) || !plain(pair.up) || result(pair.gate).is_none() || result(pair.gate) != result(pair.up) {
        return None;
    }
    match (product(pair.gate), product(pair.up)) {
        (Ok((Open::Gemm(gate, _), false)), Ok((Open::Gemm(up, _), false))) if gate == up => {
            gate.gate(pair.function).separate_up(true).build().ok().map(Problem::Gemm)
        }
        _ => None,
    }
}

fn shape<'a>(graph: &'a Graph, node: &NodeProto, n: usize) -> Result<&'a [u64], String> {
    let name = node.input.get(n).filter(|name| !name.is_empty()).ok_or_else(|| format!("input {n} is missing"))?;
    let shape = graph.shapes.get(name).ok_or_else(|| format!("the shape of its input {name} is not known"))?;
    if shape.contains(&0) { Err(format!("its input {name} is empty")) } else { Ok(shape) }
}

fn has(node: &NodeProto, n: usize) -> bool {
    node.input.get(n).is_some_and(|name| !name.is_empty())
}

fn conv(graph: &Graph, node: &NodeProto, layout: Layout) -> Result<(Open, bool), String> {
    let (a, input, filter) = (Attributes(node), shape(graph, node, 0)?, shape(graph, node, 1)?);
    let dims = input.len().saturating_sub(2);
    if !(1..=3).contains(&dims) || filter.len() != input.len() {
        return Err(format!("an input of {} and a filter of {} dimensions", input.len(), filter.len()));
    }
    let sizes = |name: &str, count: usize, otherwise: usize| -> Result<Vec<u64>, String> {
        Ok(a.spatial(name, count, otherwise)?.into_iter().map(|v| v as u64).collect())
    };
    let (strides, dilations) = (sizes("strides", dims, 1)?, sizes("dilations", dims, 1)?);
    let mut pads = sizes("pads", 2 * dims, 0)?;
    let same = a.text("auto_pad").filter(|p| p.starts_with("SAME"));
    if let Some(how) = same {
        for d in 0..dims {
            let (size, stride) = (input[2 + d], strides[d].max(1));
            let reach = (filter[2 + d] - 1).saturating_mul(dilations[d]).saturating_add(1);
            let total = ((size.div_ceil(stride) - 1) * stride).saturating_add(reach).saturating_sub(size);
            (pads[d], pads[dims + d]) = (total / 2, total - total / 2);
            if how == "SAME_LOWER" {
                pads.swap(d, dims + d);
            }
        }
    }
    let groups = u64::try_from(a.int("group").unwrap_or(1)).ok().filter(|g| *g > 0).ok_or("group is not positive")?;
    if filter[1].checked_mul(groups) != Some(input[1]) {
        return Err(format!("{} input channels, a filter for {} in {groups} groups", input[1], filter[1]));
    }
    let builder = Conv::new(graph.dtype, input[0], input[1], filter[0], &input[2..], &filter[2..]);
    let builder = builder.groups(groups).stride(&strides).dilation(&dilations).pad(&pads[..dims], &pads[dims..]).layout(layout);
    let biased = has(node, 2);
    let open = Open::Conv(Box::new(builder), filter[0]);
    Ok((if biased { open.bias() } else { open }, biased))
}

fn gemm(graph: &Graph, node: &NodeProto) -> Result<(Open, bool), String> {
    let (a, left, right) = (Attributes(node), shape(graph, node, 0)?, shape(graph, node, 1)?);
    let (&[a0, a1], &[b0, b1]) = (left, right) else {
        return Err(format!("factors of {} and {} dimensions", left.len(), right.len()));
    };
    let (ta, tb) = (a.int("transA") == Some(1), a.int("transB") == Some(1));
    let ((m, k), (k2, n)) = (if ta { (a1, a0) } else { (a0, a1) }, if tb { (b1, b0) } else { (b0, b1) });
    if k != k2 {
        return Err(format!("sums of {k} and {k2} terms"));
    }
    let mut builder = Gemm::new(graph.dtype, m, n, k).trans(ta, tb);
    let mut biased = has(node, 2);
    if biased && a.float("beta").unwrap_or(1.0) != 0.0 {
        builder = match shape(graph, node, 2)? {
            [] | [1] | [1, 1] if n > 1 => builder,
            [x] | [1, x] if *x == n => builder.bias(Along::N),
            [x, 1] if *x == m => builder.bias(Along::M),
            [x, y] if (*x, *y) == (m, n) => builder.residual(),
            other => return Err(format!("an addend of {other:?} to {m} x {n} results")),
        };
    } else {
        biased = false;
    }
    Ok((Open::Gemm(Box::new(builder), n), biased))
}

fn matmul(graph: &Graph, node: &NodeProto) -> Result<(Open, bool), String> {
    let (left, right) = (shape(graph, node, 0)?, shape(graph, node, 1)?);
    // A vector is a matrix of one row, or one column.
    let row = |v: &[u64]| if v.len() == 1 { vec![1, v[0]] } else { v.to_vec() };
    let column = |v: &[u64]| if v.len() == 1 { vec![v[0], 1] } else { v.to_vec() };
    let (left, right) = (row(left), column(right));
    let (Some((batch_a, &[m, k])), Some((batch_b, &[k2, n]))) = (left.split_last_chunk::<2>(), right.split_last_chunk::<2>())
    else {
        return Err("a factor without a dimension".into());
    };
    if k != k2 {
        return Err(format!("sums of {k} and {k2} terms"));
    }
    let count = |batch: &[u64]| batch.iter().try_fold(1u64, |p, d| p.checked_mul(*d)).ok_or("a batch beyond 64 bits");
    let (of_a, of_b) = (count(batch_a)?, count(batch_b)?);
    let trimmed = |batch: &[u64]| batch.iter().skip_while(|d| **d == 1).copied().collect::<Vec<_>>();
    let builder = if of_b == 1 {
        // One operand B for all: the batch is rows.
        Gemm::new(graph.dtype, of_a.checked_mul(m).ok_or("rows beyond 64 bits")?, n, k)
    } else if of_a == 1 {
        Gemm::new(graph.dtype, m, n, k).batch(of_b).stride_a(0)
    } else if trimmed(batch_a) == trimmed(batch_b) {
        Gemm::new(graph.dtype, m, n, k).batch(of_a)
    } else {
        return Err(format!("batches of {batch_a:?} and {batch_b:?}, each repeated along another dimension"));
    };
    Ok((Open::Gemm(Box::new(builder), n), false))
}

/// A standalone reduction; pooling over all of space is one.
fn reduce(graph: &Graph, node: &NodeProto, operator: Operator) -> Result<(Problem, Vec<String>), String> {
    let (a, shape) = (Attributes(node), shape(graph, node, 0)?);
    let op = node.op_type.as_deref().unwrap_or_default();
    let given = match node.input.get(1).filter(|name| !name.is_empty()) {
        Some(name) => Some(graph.numbers.get(name).ok_or_else(|| format!("its axes {name} are not known"))?.as_slice()),
        None => a.ints("axes"),
    };
    let over: Vec<usize> = match given.filter(|axes| !axes.is_empty()) {
        _ if op.starts_with("Global") => (2..shape.len()).collect(),
        _ if operator.indexes() => vec![axis(a.int("axis").unwrap_or(0), shape.len())?],
        Some(axes) => axes.iter().map(|at| axis(*at, shape.len())).collect::<Result<_, _>>()?,
        None if a.int("noop_with_empty_axes") == Some(1) => return Err("it reduces no axis".into()),
        None => (0..shape.len()).collect(),
    };
    let problem = Reduce::new(graph.dtype, shape, &over).op(operator).build().map_err(|e| e.to_string())?;
    Ok((Problem::Reduce(problem), Vec::new()))
}

/// A tensor's axis, which may be counted from its end.
fn axis(at: i64, dims: usize) -> Result<usize, String> {
    let counted = if at < 0 { at.checked_add_unsigned(dims as u64) } else { Some(at) };
    counted.and_then(|n| usize::try_from(n).ok()).filter(|n| *n < dims).ok_or_else(|| format!("axis {at} of {dims}"))
}

/// Folds a normalisation of channels, an added vector and an activation that alone read what the node writes.
fn fold(graph: &Graph, node: &NodeProto, mut open: Open, mut biased: bool) -> (Open, Vec<String>) {
    let mut folded = Vec::new();
    let mut output = node.output.first();
    // Nodes come after those whose results they read: a model where one reads its own result has no end otherwise.
    let mut later = graph.nodes.iter().skip_while(|n| !std::ptr::eq(*n, node)).skip(1);
    while let Some(name) = output.filter(|name| graph.readers.get(*name) == Some(&1)) {
        let Some(next) = later.find(|n| n.input.contains(name)) else { break };
        let op = next.op_type.as_deref().unwrap_or_default();
        let columns = match open {
            Open::Gemm(_, n) | Open::Conv(_, n) => n,
        };
        let along_columns = |other: &String| graph.shapes.get(other).is_some_and(|s| s.as_slice() == [columns]);
        match op {
            // Its scale goes into the filter, its shift is a bias.
            "BatchNormalization" if matches!(open, Open::Conv(..)) && next.input.first() == Some(name) => {
                open = if biased { open } else { open.bias() };
                biased = true;
            }
            "Add" if !biased && matches!(open, Open::Gemm(..)) && next.input.iter().any(along_columns) => {
                open = open.bias();
                biased = true;
            }
            "Relu" | "Gelu" | "HardSwish" => {
                let tanh = Attributes(next).text("approximate") == Some("tanh");
                folded.push(op.to_string());
                let activation = match (op, tanh) {
                    ("Relu", _) => Activation::Relu,
                    ("HardSwish", _) => Activation::HardSwish,
                    (_, true) => Activation::GeluTanh,
                    _ => Activation::Gelu,
                };
                return (open.activation(activation), folded);
            }
            _ => break,
        }
        folded.push(op.to_string());
        output = next.output.first();
    }
    (open, folded)
}
