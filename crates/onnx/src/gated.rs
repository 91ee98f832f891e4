//! Gated MLPs: two products of one input, a function of the first, and its product with the second. They are one problem.

use crate::infer::Attributes;
use crate::model::Graph;
use rten_onnx::onnx::NodeProto;
use std::collections::HashMap;
use tilewright_problem::GateFunction;

/// The nodes of a gated MLP up to the product of both factors.
pub(crate) struct Gated<'g> {
    pub gate: &'g NodeProto,
    pub up: &'g NodeProto,
    pub function: GateFunction,
    /// The nodes of the function, and the product of both factors.
    rest: Vec<&'g NodeProto>,
}

/// A function of a value.
struct Applied<'g> {
    function: GateFunction,
    of: &'g str,
    nodes: Vec<&'g NodeProto>,
    /// How often its nodes read the value.
    reads: usize,
}

impl Gated<'_> {
    /// Operators besides the gate's product, in the order of the model.
    pub(crate) fn operators(&self, graph: &Graph) -> Vec<String> {
        let all = self.rest.iter().chain(std::iter::once(&self.up));
        let all: Vec<*const NodeProto> = all.map(|node| std::ptr::from_ref::<NodeProto>(node)).collect();
        let of = graph.nodes.iter().filter(|node| all.contains(&std::ptr::from_ref::<NodeProto>(node)));
        of.filter_map(|node| node.op_type.clone()).collect()
    }
}

/// The gated MLPs of a graph whose values in between nobody else reads.
pub(crate) fn gated(graph: &Graph) -> Vec<Gated<'_>> {
    let outputs = graph.nodes.iter().filter_map(|node| Some((node.output.first()?.as_str(), node)));
    let writers: HashMap<&str, &NodeProto> = outputs.collect();
    let found = graph.nodes.iter().filter(|node| op(node) == "Mul").filter_map(|product| {
        let [left, right] = product.input.as_slice() else { return None };
        [(left, right), (right, left)].into_iter().find_map(|(left, right)| {
            let applied = applied(graph, &writers, left)?;
            let (gate, up) = (*writers.get(applied.of)?, *writers.get(right.as_str())?);
            let products = matches!(op(gate), "MatMul" | "Gemm") && op(gate) == op(up) && !std::ptr::eq(gate, up);
            let alone = reads(graph, applied.of) == applied.reads && reads(graph, left) == 1 && reads(graph, right) == 1;
            if !products || !alone || gate.input.first() != up.input.first() {
                return None;
            }
            let rest = applied.nodes.into_iter().chain([product]).collect();
            Some(Gated { gate, up, function: applied.function, rest })
        })
    });
    found.collect()
}

fn op(node: &NodeProto) -> &str {
    node.op_type.as_deref().unwrap_or_default()
}

fn reads(graph: &Graph, name: &str) -> usize {
    graph.readers.get(name).copied().unwrap_or_default()
}

/// The function that computes a value, with its argument. SiLU is a node, or the product of the argument and its sigmoid.
fn applied<'g>(graph: &Graph, writers: &HashMap<&'g str, &'g NodeProto>, value: &str) -> Option<Applied<'g>> {
    let node = *writers.get(value)?;
    let alone = |function| Some(Applied { function, of: node.input.first()?, nodes: vec![node], reads: 1 });
    match op(node) {
        "Relu" => alone(GateFunction::Relu),
        "HardSwish" => alone(GateFunction::HardSwish),
        "Sigmoid" => alone(GateFunction::Sigmoid),
        "Swish" if Attributes(node).float("alpha").is_none_or(|alpha| alpha == 1.0) => alone(GateFunction::Silu),
        "Gelu" if Attributes(node).text("approximate") == Some("tanh") => alone(GateFunction::GeluTanh),
        "Gelu" => alone(GateFunction::Gelu),
        "Mul" => {
            let [left, right] = node.input.as_slice() else { return None };
            [(left, right), (right, left)].into_iter().find_map(|(of, sigmoid)| {
                let sigmoid_of = *writers.get(sigmoid.as_str()).filter(|node| op(node) == "Sigmoid")?;
                let same = sigmoid_of.input.first() == Some(of) && reads(graph, sigmoid) == 1;
                same.then(|| Applied { function: GateFunction::Silu, of, nodes: vec![sigmoid_of, node], reads: 2 })
            })
        }
        _ => None,
    }
}
