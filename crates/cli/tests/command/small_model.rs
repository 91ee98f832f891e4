//! A model that tests write to a file.

use rten_onnx::onnx::{DataType, Dimension, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, TypeProto};
use rten_onnx::onnx::{TypeProtoTensor, ValueInfoProto};

/// Two equal products, one after the other, and an LSTM, over a free batch.
pub fn model() -> Vec<u8> {
    let dim = |value, name: Option<&str>| Dimension { dim_value: value, dim_param: name.map(String::from) };
    let shape = Some(TensorShapeProto { dim: vec![dim(None, Some("batch")), dim(Some(16), None)] });
    let tensor_type = Some(TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape });
    let input = ValueInfoProto { name: Some("x".into()), r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }) };
    let weight =
        TensorProto { name: Some("w".into()), dims: vec![16, 16], data_type: Some(DataType::FLOAT), ..TensorProto::default() };
    let node = |op: &str, from: &str, to: &str| NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("<{to}>")),
        input: vec![from.into(), "w".into()],
        output: vec![to.into()],
        ..NodeProto::default()
    };
    let node = vec![node("MatMul", "x", "first"), node("MatMul", "first", "second"), node("LSTM", "second", "third")];
    let graph = GraphProto { node, initializer: vec![weight], input: vec![input], ..GraphProto::default() };
    ModelProto { ir_version: Some(8), graph: Some(graph), ..ModelProto::default() }.write_buf().expect("it is written")
}
