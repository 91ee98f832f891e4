//! Small models made here, the light models of the `onnx` package, and files that nobody should trust.

use rten_onnx::onnx::{AttributeProto, DataType, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use rten_onnx::onnx::{TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto};
use tilewright_ir::Scalar;
use tilewright_onnx::{Model, OnnxError, Options, parse};
use tilewright_problem::Layout;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

fn node(op: &str, input: &str, output: &str, ints: &[(&str, &[i64])]) -> NodeProto {
    let attribute = ints.iter().map(|(name, values)| {
        let one = AttributeProto { name: Some(name.to_string()), ..AttributeProto::default() };
        match values {
            [value] if *name != "axes" => AttributeProto { i: Some(*value), ..one },
            _ => AttributeProto { ints: values.to_vec(), ..one },
        }
    });
    let (attribute, op_type) = (attribute.collect(), Some(op.into()));
    NodeProto {
        op_type,
        name: Some(output.into()),
        input: words(input),
        output: words(output),
        attribute,
        ..NodeProto::default()
    }
}

fn weight(name: &str, dims: &[i64]) -> TensorProto {
    TensorProto { name: Some(name.into()), dims: dims.to_vec(), data_type: Some(DataType::FLOAT), ..TensorProto::default() }
}

fn numbers(name: &str, values: &[i64]) -> TensorProto {
    let (dims, int64_data) = (vec![values.len() as i64], values.to_vec());
    TensorProto { name: Some(name.into()), dims, data_type: Some(DataType::INT64), int64_data, ..TensorProto::default() }
}

/// An input; dimensions that are no numbers are free.
fn value(name: &str, dims: &str) -> ValueInfoProto {
    let dim = |text: &str| match text.parse() {
        Ok(value) => Dimension { dim_value: Some(value), dim_param: None },
        Err(_) => Dimension { dim_value: None, dim_param: Some(text.into()) },
    };
    let shape = Some(TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() });
    let tensor_type = Some(TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape });
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }) }
}

fn model(input: Vec<ValueInfoProto>, initializer: Vec<TensorProto>, node: Vec<NodeProto>) -> ModelProto {
    let output = node.last().and_then(|n| n.output.first()).map(|o| value(o, "1")).into_iter().collect();
    let graph = Some(GraphProto { node, initializer, input, output, ..GraphProto::default() });
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    ModelProto { ir_version: Some(8), graph, opset_import: vec![opset], ..ModelProto::default() }
}

/// Convolutions with all that is folded, then an attention-like product over a free batch.
fn example() -> ModelProto {
    let nodes = vec![
        node("Conv", "x w1", "c1", &[("pads", &[1, 1, 1, 1]), ("strides", &[2, 2])]),
        node("BatchNormalization", "c1 s s s s", "b1", &[]),
        node("Relu", "b1", "r1", &[]),
        node("Conv", "r1 w2 bias2", "c2", &[("group", &[4]), ("dilations", &[2, 2]), ("pads", &[2, 2, 2, 2])]),
        node("Add", "c2 r1", "sum", &[]),
        node("Shape", "sum", "sh", &[("end", &[1])]),
        node("Concat", "sh tail", "to", &[("axis", &[0])]),
        node("Reshape", "sum to", "tokens", &[]),
        node("MatMul", "tokens w3", "q", &[]),
        node("Add", "q bias3", "qb", &[]),
        node("Gelu", "qb", "g", &[]),
        node("Transpose", "g", "gt", &[("perm", &[0, 2, 1])]),
        node("MatMul", "g gt", "scores", &[]),
        node("Softmax", "scores", "p", &[]),
        node("Flatten", "p", "flat", &[]),
        node("Gemm", "flat w4 bias4", "out", &[("transB", &[1])]),
    ];
    let weights = vec![
        weight("w1", &[16, 3, 3, 3]),
        weight("s", &[16]),
        weight("w2", &[16, 4, 3, 3]),
        weight("bias2", &[16]),
        numbers("tail", &[16, -1]),
        weight("w3", &[64, 32]),
        weight("bias3", &[32]),
        weight("w4", &[10, 256]),
        weight("bias4", &[10]),
    ];
    model(vec![value("x", "batch 3 16 16")], weights, nodes)
}

fn bytes(model: &ModelProto) -> Vec<u8> {
    model.write_buf().expect("it is written")
}

fn read(model: &ModelProto, dims: &[(&str, u64)]) -> Result<Model, OnnxError> {
    let dims = dims.iter().map(|(name, size)| (name.to_string(), *size)).collect();
    parse("m.onnx", &bytes(model), &Options { dims, ..Options::default() })
}

fn keys(model: &Model) -> Vec<String> {
    model.layers.iter().map(|l| l.problem.key()).collect()
}

#[test]
fn nodes_become_problems_with_what_stands_behind_them() {
    let model = read(&example(), &[("batch", 5)]).expect("a model");
    assert_eq!(model.skipped, Vec::<String>::new());
    let names: Vec<&str> = model.layers.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["c1", "c2", "q", "scores", "out"]);
    assert_eq!(model.layers[0].folded, ["BatchNormalization", "Relu"]);
    assert_eq!(model.layers[2].folded, ["Add", "Gelu"]);
    let keys = keys(&model);
    for (key, parts) in keys.iter().zip([
        &["conv_fwd_nchw_n5_g1_c3_k16_in16x16_fil3x3_st2x2_dil1x1_pb1x1_pe1x1_bias1", "actrelu"][..],
        &["conv_fwd_nchw_n5_g4_c16_k16_in8x8_fil3x3_st1x1_dil2x2_pb2x2_pe2x2_bias1"],
        &["tA0_tB0", "_m80_n32_k64_", "biasn", "actgelu"],
        &["_m16_n16_k32_", "_b5_"],
        &["tA0_tB1", "_m5_n10_k256_", "biasn"],
    ]) {
        assert!(parts.iter().all(|p| key.contains(p)), "{key}: {parts:?}");
    }
    // What reads r1 beside the second convolution keeps the addition out of its epilogue.
    assert!(model.layers[1].folded.is_empty() && !keys[1].contains("actrelu"));
}

/// Gated MLPs in the ways that exporters write them, each beside one whose values somebody else reads.
#[test]
fn gated_mlps_are_one_problem() {
    let mlp = |product: &str, function: &[NodeProto], ints: &[(&str, &[i64])]| {
        let mut nodes = vec![node(product, "x wg", "g", ints)];
        nodes.extend_from_slice(function);
        nodes.extend([node(product, "x wu", "u", ints), node("Mul", "f u", "p", &[]), node("MatMul", "p wd", "d", &[])]);
        nodes
    };
    let silu = [node("Sigmoid", "g", "s", &[]), node("Mul", "g s", "f", &[])];
    let turned = [node("Sigmoid", "g", "s", &[]), node("Mul", "s g", "f", &[])];
    let one = |op: &str| [node(op, "g", "f", &[])];
    let across: &[(&str, &[i64])] = &[("transB", &[1])];
    let weights = || vec![weight("wg", &[8, 24]), weight("wu", &[8, 24]), weight("wd", &[24, 8])];
    let of = |nodes: Vec<NodeProto>, weights: Vec<TensorProto>| {
        let read = read(&model(vec![value("x", "5 8")], weights, nodes), &[]).expect("a model");
        assert!(read.skipped.is_empty(), "{:?}", read.skipped);
        read
    };
    for (nodes, gate, folded) in [
        (mlp("MatMul", &silu, &[]), "gatesilu", "Sigmoid Mul MatMul Mul"),
        (mlp("MatMul", &turned, &[]), "gatesilu", "Sigmoid Mul MatMul Mul"),
        (mlp("MatMul", &one("Gelu"), &[]), "gategelu", "Gelu MatMul Mul"),
        (mlp("MatMul", &one("Relu"), &[]), "gaterelu", "Relu MatMul Mul"),
        (mlp("MatMul", &one("Sigmoid"), &[]), "gatesigmoid", "Sigmoid MatMul Mul"),
        (mlp("Gemm", &silu, &[]), "gatesilu", "Sigmoid Mul Gemm Mul"),
    ] {
        let read = of(nodes, weights());
        assert_eq!(read.layers.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["g", "d"]);
        assert_eq!(read.layers[0].folded, words(folded));
        let key = read.layers[0].problem.key();
        assert!(key.contains("_m5_n24_k8_") && key.ends_with(&format!("_{gate}_separateup")), "{key}");
    }
    let transposed = of(mlp("Gemm", &silu, across), vec![weight("wg", &[24, 8]), weight("wu", &[24, 8]), weight("wd", &[24, 8])]);
    assert!(transposed.layers[0].problem.key().contains("tB1"));
    // Another reader of the gate, of its function or of the other factor; other weights; a bias; another input.
    for name in ["g", "f", "u"] {
        let mut nodes = mlp("MatMul", &silu, &[]);
        nodes.push(node("Tanh", name, "t", &[]));
        assert_eq!(of(nodes, weights()).layers.len(), 3, "{name}");
    }
    let wider = vec![weight("wg", &[8, 24]), weight("wu", &[8, 1]), weight("wd", &[24, 8])];
    assert_eq!(of(mlp("MatMul", &silu, &[]), wider).layers.len(), 3);
    let mut nodes = mlp("Gemm", &silu, &[]);
    nodes[3].input.push("bias".into());
    assert_eq!(of(nodes, [weights(), vec![weight("bias", &[24])]].concat()).layers.len(), 3);
    let mut nodes = mlp("Gemm", &silu, &[]);
    let alpha = AttributeProto { name: Some("alpha".into()), f: Some(0.5), ..AttributeProto::default() };
    nodes[0].attribute.push(alpha);
    assert_eq!(of(nodes, weights()).layers.len(), 3);
    let mut nodes = mlp("MatMul", &silu, &[]);
    nodes[3].input[0] = "y".into();
    let inputs = vec![value("x", "5 8"), value("y", "5 8")];
    assert_eq!(read(&model(inputs, weights(), nodes), &[]).expect("a model").layers.len(), 3);
    // Batches of the same size along other dimensions, which the product of both repeats.
    let batches = vec![weight("wg", &[2, 1, 8, 24]), weight("wu", &[1, 2, 8, 24]), weight("wd", &[24, 8])];
    let of_batches = model(vec![value("x", "1 1 5 8")], batches, mlp("MatMul", &silu, &[]));
    assert_eq!(read(&of_batches, &[]).expect("a model").layers.len(), 3);
}

#[test]
fn dimensions_types_and_layouts_are_the_users_choice() {
    let options = Options { dims: vec![("x.0".into(), 2)], dtype: Some(Scalar::BF16), layout: Some(Layout::Nhwc) };
    let model = parse("m.onnx", &bytes(&example()), &options).expect("a model");
    let keys = keys(&model);
    assert!(keys[0].starts_with("conv_fwd_nhwc_n2_") && keys[0].contains("_bf16"), "{}", keys[0]);
    let free = read(&example(), &[]).expect_err("a free dimension").to_string();
    assert_eq!(free, "m.onnx: free dimensions: batch (x.0); give each a size: --dim batch=N");
    let wrong = read(&example(), &[("batch", 1), ("depth", 2)]).expect_err("no such dimension").to_string();
    assert_eq!(wrong, "m.onnx: has no dimension depth; its inputs are x [batch, 3, 16, 16]");
}

/// A file of one batch may be asked for another: constant shapes that begin with it follow, others are refused by name.
#[test]
fn constant_shapes_follow_the_batch() {
    let made = |to: &[i64]| {
        let nodes = vec![node("Conv", "x w", "c", &[]), node("Reshape", "c to", "r", &[]), node("Gemm", "r w2", "y", &[])];
        let weights = vec![weight("w", &[8, 4, 8, 8]), numbers("to", to), weight("w2", &[8, 10])];
        model(vec![value("x", "2 4 8 8")], weights, nodes)
    };
    for to in [&[2, 8][..], &[2, -1], &[-1, 8]] {
        for batch in [2, 6] {
            let model = read(&made(to), &[("x.0", batch)]).expect("a model");
            assert!(keys(&model)[1].contains(&format!("_m{batch}_n10_k8_")), "{to:?} {batch}: {:?}", keys(&model));
        }
    }
    let fixed = read(&made(&[1, 16]), &[("x.0", 6)]).expect_err("another shape").to_string();
    let told =
        "node r (Reshape): values of [6, 8, 1, 1] cannot take the shape [1, 16], which the file fixes for a first dimension of 2";
    assert!(fixed.contains(told) && fixed.contains("a free one"), "{fixed}");
    let huge = read(&made(&[2, i64::MAX, i64::MAX, 4]), &[("x.0", 6)]).expect_err("no size").to_string();
    assert!(huge.contains("node r (Reshape)"), "{huge}");
    let wrong = read(&made(&[1, 17]), &[]).expect_err("no shape of it").to_string();
    assert!(wrong.contains("values of [2, 8, 1, 1] cannot take the shape [1, 17]") && !wrong.contains("fixes"), "{wrong}");
}

/// An encoder as exporters write it, with free batch and length: sizes are read from its values, taken apart and put together again.
fn encoder() -> ModelProto {
    let mut nodes = vec![
        node("Shape", "x", "sizes", &[]),
        node("Gather", "sizes zero", "b", &[("axis", &[0])]),
        node("Gather", "sizes one", "t", &[("axis", &[0])]),
        node("Unsqueeze", "b axis", "b1", &[]),
        node("Unsqueeze", "t axis", "t1", &[]),
        node("Concat", "b1 t1 heads", "apart", &[("axis", &[0])]),
        node("Concat", "b1 t1 whole", "together", &[("axis", &[0])]),
    ];
    for name in ["q", "k", "v"] {
        let n = |text: &str| text.replace('_', name);
        nodes.push(node("MatMul", &n("x w_"), &n("_m"), &[]));
        nodes.push(node("Add", &n("bias _m"), &n("_a"), &[]));
        nodes.push(node("Reshape", &n("_a apart"), &n("_r"), &[]));
        let perm: &[i64] = if name == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
        nodes.push(node("Transpose", &n("_r"), &n("_t"), &[("perm", perm)]));
    }
    nodes.extend([
        node("MatMul", "qt kt", "scores", &[]),
        node("Div", "scores scale", "scaled", &[]),
        node("Softmax", "scaled", "p", &[("axis", &[-1])]),
        node("MatMul", "p vt", "mixed", &[]),
        node("Transpose", "mixed", "back", &[("perm", &[0, 2, 1, 3])]),
        node("Reshape", "back together", "rows", &[]),
        node("MatMul", "rows wo", "o", &[]),
        node("Add", "o bias", "ob", &[]),
        node("Add", "ob x", "sum", &[]),
        node("LayerNormalization", "sum g g", "norm", &[("axis", &[-1])]),
        node("MatMul", "norm up", "u", &[]),
        node("Add", "u wide", "ub", &[]),
        node("HardSwish", "ub", "act", &[]),
        node("MatMul", "act down", "out", &[]),
    ]);
    let mut weights: Vec<TensorProto> = ["wq", "wk", "wv", "wo"].map(|name| weight(name, &[64, 64])).into();
    weights.extend([weight("bias", &[64]), weight("g", &[64]), weight("scale", &[1]), weight("wide", &[256])]);
    weights.extend([weight("up", &[64, 256]), weight("down", &[256, 64])]);
    let index = |name: &str, value| TensorProto { dims: vec![], ..numbers(name, &[value]) };
    weights.extend([
        index("zero", 0),
        index("one", 1),
        numbers("axis", &[0]),
        numbers("heads", &[4, 16]),
        numbers("whole", &[64]),
    ]);
    model(vec![value("x", "batch length 64")], weights, nodes)
}

#[test]
fn an_encoder_of_any_batch_and_length() {
    for (b, t) in [(1, 7), (3, 33)] {
        let model = read(&encoder(), &[("batch", b), ("length", t)]).expect("a model");
        assert_eq!(model.skipped, Vec::<String>::new());
        let rows = b * t;
        let batched = if b * 4 > 1 { format!("_b{}_", b * 4) } else { String::new() };
        let wanted = [
            ("qm", vec![format!("_m{rows}_n64_k64_"), "biasn".into()]),
            ("km", vec![format!("_m{rows}_n64_k64_"), "biasn".into()]),
            ("vm", vec![format!("_m{rows}_n64_k64_"), "biasn".into()]),
            ("scores", vec![format!("_m{t}_n{t}_k16_"), batched.clone()]),
            ("mixed", vec![format!("_m{t}_n16_k{t}_"), batched]),
            ("o", vec![format!("_m{rows}_n64_k64_"), "biasn".into()]),
            ("u", vec![format!("_m{rows}_n256_k64_"), "biasn".into(), "acthardswish".into()]),
            ("out", vec![format!("_m{rows}_n64_k256_")]),
        ];
        for (layer, (name, parts)) in model.layers.iter().zip(&wanted) {
            let key = layer.problem.key();
            assert!(layer.name == *name && parts.iter().all(|p| key.contains(p.as_str())), "{name}: {key}, {parts:?}");
        }
        assert_eq!(model.layers.len(), wanted.len());
    }
    let free = read(&encoder(), &[("batch", 2)]).expect_err("a free length").to_string();
    assert!(free.contains("length (x.1)") && free.contains("--dim length=N"), "{free}");
}

/// Reductions with axes as attributes, as inputs, from the end, or none; what is computed of sizes is none.
#[test]
fn reductions_become_problems() {
    let nodes = vec![
        node("ReduceMean", "x", "mean", &[("axes", &[2, 3])]),
        node("ReduceSum", "x last", "sum", &[]),
        node("ReduceMax", "x", "max", &[]),
        node("ReduceLogSumExp", "x", "lse", &[("axes", &[1])]),
        node("ArgMax", "x", "arg", &[("axis", &[-1])]),
        node("GlobalAveragePool", "x", "pool", &[]),
        node("Shape", "x", "sizes", &[]),
        node("ReduceMax", "sizes", "largest", &[]),
        node("ReduceL2", "x", "norm", &[("axes", &[0])]),
        node("ReduceL1", "x", "magnitudes", &[]),
        node("ReduceSumSquare", "x unknown", "squares", &[]),
    ];
    let inputs = vec![value("x", "batch 3 8 8"), value("unknown", "1")];
    let model = read(&model(inputs, vec![numbers("last", &[-1])], nodes), &[("batch", 2)]).expect("a model");
    let keys: Vec<(String, String)> = model.layers.iter().map(|l| (l.name.clone(), l.problem.key())).collect();
    for ((name, key), (wanted, part)) in keys.iter().zip([
        ("mean", "in2x3x8x8_over2x3_"),
        ("sum", "in2x3x8x8_over3_"),
        ("max", "in2x3x8x8_over0x1x2x3_"),
        ("lse", "in2x3x8x8_over1_"),
        ("arg", "in2x3x8x8_over3_"),
        ("pool", "in2x3x8x8_over2x3_"),
        ("norm", "in2x3x8x8_over0_st192x64x8x1_o0_opnorm2_"),
    ]) {
        assert!(name == wanted && key.contains(part), "{wanted}: {key}");
    }
    assert_eq!(keys.len(), 7, "{keys:?}");
    let told = ["magnitudes (ReduceL1): there is no problem", "squares (ReduceSumSquare): its axes unknown are not known"];
    assert_eq!(model.skipped.len(), told.len(), "{:?}", model.skipped);
    for (skipped, part) in model.skipped.iter().zip(told) {
        assert!(skipped.contains(part), "{skipped}: {part}");
    }
}

/// Images made larger by factors; where the sizes stay unknown, a convolution is skipped by name.
#[test]
fn images_are_resized() {
    let resized = |factors: &[f32], opset: i64| {
        let nodes = vec![
            node("Conv", "x w", "c", &[]),
            node("Resize", if opset < 11 { "c by" } else { "c none by" }, "r", &[]),
            node("Conv", "r w", "y", &[]),
        ];
        let by = TensorProto {
            name: Some("by".into()),
            dims: vec![factors.len() as i64],
            data_type: Some(DataType::FLOAT),
            float_data: factors.to_vec(),
            ..TensorProto::default()
        };
        let mut made = model(vec![value("x", "1 8 5 6")], vec![weight("w", &[8, 8, 1, 1]), weight("none", &[0]), by], nodes);
        made.opset_import[0].version = Some(opset);
        read(&made, &[])
    };
    for opset in [10, 17] {
        let model = resized(&[1.0, 1.0, 2.0, 1.5], opset).expect("a model");
        assert!(keys(&model)[1].contains("_in10x9_"), "{:?}", keys(&model));
        let model = resized(&[2.0], opset).expect("a model");
        assert!(model.skipped[0].contains("y (Conv): the shape of its input r is not known"), "{:?}", model.skipped);
        for factor in [-1.0, 0.0, 1e30, f32::NAN] {
            let told = resized(&[1.0, 1.0, factor, 1.0], opset).expect_err("no size").to_string();
            assert!(told.contains("node r (Resize): factors"), "{told}");
        }
    }
}

#[test]
fn unsound_models_are_refused_by_name() {
    let conv = |w: &[i64], attributes: &[(&str, &[i64])]| {
        model(vec![value("x", "1 4 8 8")], vec![weight("w", w)], vec![node("Conv", "x w", "y", attributes)])
    };
    for (model, part) in [
        (model(vec![], vec![], vec![]), "its graph has no node"),
        (ModelProto::default(), "there is no graph"),
        (
            model(vec![value("x", "1 4")], vec![], vec![node("Relu", "x", "y", &[])]),
            "no convolution, no matrix product and no reduction",
        ),
        (conv(&[8, -4, 3, 3], &[]), "initializer w: a dimension of -4"),
        (conv(&[8, 4, i64::MAX, i64::MAX], &[]), "initializer w: more elements than can be counted"),
        (conv(&[8, 4, 1 << 40, 1], &[]), "node y (Conv): a dimension of 1099511627776"),
        (conv(&[8, 5, 3, 3], &[]), "y (Conv): 4 input channels, a filter for 5 in 1 groups"),
        (conv(&[8, 4, 3, 3], &[("group", &[0])]), "group is not positive"),
        (conv(&[8, 4, 3, 3], &[("strides", &[0, 0])]), "a stride or a dilation of 0"),
        (conv(&[8, 4, 3, 3], &[("pads", &[-1, 0, 0, 0])]), "pads is [-1, 0, 0, 0]"),
        (conv(&[8, 4, 3, 3], &[("strides", &[1, 1, 1])]), "strides is [1, 1, 1]"),
        (conv(&[8, 4, 9, 9], &[]), "y (Conv)"),
        (model(vec![value("x", "4 5")], vec![weight("w", &[6, 7])], vec![node("MatMul", "x w", "y", &[])]), "y (MatMul)"),
        (model(vec![value("x", "4 5")], vec![], vec![node("ReduceMin", "x", "y", &[("axes", &[-3])])]), "node y (ReduceMin)"),
        (model(vec![value("x", "4 5")], vec![], vec![node("ArgMax", "x", "y", &[("axis", &[i64::MIN])])]), "node y (ArgMax)"),
        (model(vec![value("x", "4 5")], vec![], vec![node("MatMul", "x w", "y", &[])]), "shape of its input w is not known"),
        (model(vec![value("x", "4 5")], vec![numbers("n", &[1, 2])], vec![node("Reshape", "x n", "y", &[])]), "m.onnx"),
    ] {
        let error = read(&model, &[]).expect_err(part).to_string();
        assert!(error.starts_with("m.onnx: ") && error.contains(part), "{part}: {error}");
    }
    let empty = parse("m.onnx", b"", &Options::default()).expect_err("an empty file").to_string();
    assert!(empty.contains("there is no graph"), "{empty}");
    let text = parse("m.onnx", b"not a model at all", &Options::default()).expect_err("text").to_string();
    assert!(text.contains("not a sound ONNX model"), "{text}");
}

/// A field of a message: tag, length, content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (mut out, mut length) = (vec![number << 3 | 2], content.len());
    while length >= 128 {
        out.push(length as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(content);
    out
}

#[test]
fn hostile_files_are_refused() {
    let refused = |bytes: &[u8]| match parse("m.onnx", bytes, &Options::default()) {
        Err(e) => e.to_string(),
        Ok(model) => panic!("{model:?}"),
    };
    // Subgraphs within subgraphs, as deep as a stack is not.
    let mut graph = Vec::new();
    while graph.len() < 1 << 16 {
        graph = field(1, &field(5, &field(6, &graph)));
    }
    let told = refused(&field(7, &graph));
    assert!(told.contains("nested more than 64 deep"), "{told}");
    // Lengths beyond the file, up to the largest there is.
    for length in [[0x80u8, 0x80, 0x80, 0x80, 0x10].as_slice(), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let told = refused(&[&[7 << 3 | 2], length].concat());
        assert!(told.contains("bytes long, 0 are left"), "{told}");
    }
    for (bytes, part) in [
        ([0x3b, 0].as_slice(), "wire type 3"),
        (&[0x38, 1], "field 7 is no message"),
        (&[0x80; 12], "within a field"),
        (&[0, 1], "number 0"),
    ] {
        let told = refused(bytes);
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Nothing that is cut off or changed in any one place makes it panic, and what is cut off is refused.
#[test]
fn cut_and_changed_files_end_in_an_error_or_a_model() {
    let whole = bytes(&example());
    let options = Options { dims: vec![("x.0".into(), 2)], ..Options::default() };
    assert!(parse("m.onnx", &whole, &options).is_ok());
    // The set of operators stands behind the graph: without it the model may still be read.
    let graph = whole.len() - 8;
    for end in 0..graph {
        let error = parse("m.onnx", &whole[..end], &options).expect_err("cut off").to_string();
        assert!(error.starts_with("m.onnx: "), "{error}");
    }
    let mut state = 1u64;
    for _ in 0..4000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut changed = whole.clone();
        let at = (state >> 33) as usize % changed.len();
        changed[at] = (state >> 20) as u8;
        if let Err(e) = parse("m.onnx", &changed, &options) {
            assert!(e.to_string().starts_with("m.onnx: "), "{e}");
        }
    }
}

/// The reference models of the `onnx` package: every convolution and product, none skipped.
#[test]
fn light_models_are_read_whole() {
    let Some(folder) = std::env::var_os("TILEWRIGHT_ONNX_MODELS") else {
        return eprintln!(
            "SKIPPED: TILEWRIGHT_ONNX_MODELS does not name onnx/backend/test/data/light of the Python package onnx"
        );
    };
    for (name, count) in [
        ("bvlc_alexnet", 8),
        ("densenet121", 121),
        ("inception_v1", 58),
        ("inception_v2", 70),
        ("resnet50", 54),
        ("shufflenet", 50),
        ("squeezenet", 26),
        ("vgg19", 19),
        ("zfnet512", 8),
    ] {
        let path = std::path::Path::new(&folder).join(format!("light_{name}.onnx"));
        let model = tilewright_onnx::read(&path, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let reductions = model.layers.iter().filter(|l| l.op.starts_with("Global")).count();
        assert_eq!((model.layers.len() - reductions, model.skipped.len()), (count, 0), "{name}: {:?}", model.skipped);
    }
    // Its `Reshape` before the last layer is to a batch of one.
    let options = Options { dims: vec![("gpu_0/data_0.0".into(), 8)], ..Options::default() };
    let model = tilewright_onnx::read(&std::path::Path::new(&folder).join("light_resnet50.onnx"), &options).expect("a model");
    assert!(keys(&model)[53].contains("_m8_n1000_k2048_"), "{}", keys(&model)[53]);
}
