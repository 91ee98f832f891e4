//! Random problems: small, of every kind, with the features that plans must cope with.

use super::Recipe;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::Dynamic;
use tilewright_problem::{
    Activation, Along, Conv, Direction, Gemm, GemmBuilder, Layout, Math, Order, Problem, ProblemError, Real, Scale, ZeroPoint,
};
use tilewright_problem::{Axes, Function, Operator, Reduce, Reduction};

/// Workspace that suffices for everything drawn here, in bytes.
const AMPLE: u64 = 1 << 26;

/// Types of factors, and in what they are multiplied.
const FORMATS: [(Scalar, Math); 17] = [
    (Scalar::F64, Math::Exact),
    (Scalar::F32, Math::Exact),
    (Scalar::F32, Math::Tf32),
    (Scalar::F32, Math::Tf32x3),
    (Scalar::F32, Math::Bf16x3),
    (Scalar::F32, Math::Bf16x6),
    (Scalar::F16, Math::Exact),
    (Scalar::BF16, Math::Exact),
    (Scalar::E4M3, Math::Exact),
    (Scalar::E5M2, Math::Exact),
    (Scalar::E4M3Fnuz, Math::Exact),
    (Scalar::E5M2Fnuz, Math::Exact),
    (Scalar::E4M3, Math::Promoted),
    (Scalar::E5M2, Math::Promoted),
    (Scalar::E4M3Fnuz, Math::Promoted),
    (Scalar::I8, Math::Exact),
    (Scalar::U8, Math::Exact),
];

/// Types of operand B alone.
const WEIGHTS: [Scalar; 2] = [Scalar::I4, Scalar::U4];

/// Axes of the operators of a tensor reduction.
const COLUMNS: Axes = Axes { g: false, m: false, n: true, blocks: [0; 2] };

/// Draws a problem.
///
/// # Errors
/// A draw that contradicts itself (a filter larger than its input).
pub(super) fn draw(rng: &mut ChaCha8Rng, recipe: &Recipe, target: &Target) -> Result<Problem, ProblemError> {
    if recipe.shares && rng.random_bool(0.7) {
        return planes(rng);
    }
    if recipe.formats {
        let (dtype, math) = FORMATS[rng.random_range(0..FORMATS.len())];
        let drawn = if rng.random_bool(0.8) { gemm(rng, recipe, dtype) } else { conv(rng, recipe, dtype) };
        return drawn.map(|problem| with_blocks(rng, with_math(problem, math)));
    }
    if let Some(&dtype) = recipe.types.choose(rng) {
        return if rng.random_bool(0.8) { gemm(rng, recipe, dtype) } else { conv(rng, recipe, dtype) };
    }
    if recipe.units {
        let (dtype, math) = match rng.random_range(0..4) {
            0 => (Scalar::F16, Math::Exact),
            1 => (Scalar::BF16, Math::Exact),
            2 => (Scalar::F32, Math::Tf32x3),
            _ => (Scalar::F32, Math::Tf32),
        };
        let product = !recipe.convolutions && rng.random_bool(0.8);
        let drawn = if product { gemm(rng, recipe, dtype) } else { conv(rng, recipe, dtype) };
        return drawn.map(|problem| with_math(problem, math));
    }
    let mut types = vec![Scalar::F32, Scalar::F32, Scalar::F16, Scalar::BF16];
    if target.features.f64 {
        types.push(Scalar::F64);
    }
    let dtype = *types.choose(rng).unwrap_or(&Scalar::F32);
    if recipe.convolutions {
        let math = [Math::Exact, Math::Exact, Math::Tf32, Math::Tf32x3].choose(rng).filter(|_| dtype == Scalar::F32);
        return conv(rng, recipe, dtype).map(|problem| with_math(problem, *math.unwrap_or(&Math::Exact)));
    }
    if rng.random_bool(0.6) { gemm(rng, recipe, dtype) } else { conv(rng, recipe, dtype) }
}

/// Small weights are multiplied exactly.
fn with_math(mut problem: Problem, math: Math) -> Problem {
    match &mut problem {
        Problem::Gemm(gemm) if gemm.has_weights() => {}
        Problem::Gemm(gemm) => gemm.math = math,
        Problem::Conv(conv) => conv.math = math,
        Problem::Reduce(_) => {}
    }
    problem
}

/// Adds scales of blocks of k to products with two-level accumulation or with 4- or 8-bit weights.
fn with_blocks(rng: &mut ChaCha8Rng, mut problem: Problem) -> Problem {
    if let Problem::Gemm(gemm) = &mut problem
        && (gemm.math == Math::Promoted || gemm.has_weights())
        && gemm.dynamic.is_none()
    {
        for along in Along::ALL {
            if let (true, Some(scale)) = (rng.random_bool(0.5), Scale::ALL.choose(rng)) {
                gemm.scales.set(along, *scale);
            }
        }
    }
    problem
}

/// A size from 1 to `max`, small ones as likely as large ones; a multiple of `unit` where that is not too much.
fn size(rng: &mut ChaCha8Rng, max: u64, unit: u64) -> u64 {
    let size = (max as f64).powf(rng.random::<f64>()).round() as u64;
    let size = size.clamp(1, max);
    if size > unit / 2 { size.next_multiple_of(unit) } else { size }
}

/// Sizes of a sum: with schedules, often shorter than what runs ahead.
fn depth(rng: &mut ChaCha8Rng, recipe: &Recipe, unit: u64) -> u64 {
    match rng.random_range(0..8) {
        0 => 1,
        // Some rounds of a circular buffer of stages.
        1..=4 if recipe.units => rng.random_range(1..=2 * recipe.extent),
        1 | 2 if recipe.schedules => rng.random_range(1..=12),
        _ => size(rng, recipe.extent / 2, unit),
    }
}

/// Draws of a plane until its size is wanted.
const DRAWS: usize = 16;

/// A convolution whose channels are planes. Half of their pixels are an odd multiple of some width of a store. A work-group's
/// share of a tile may then begin within a vector.
fn planes(rng: &mut ChaCha8Rng) -> Result<Problem, ProblemError> {
    let width = *[1, 2, 4, 4, 8].choose(rng).unwrap_or(&1);
    let mut sides = [rng.random_range(4..=15), rng.random_range(4..=15)];
    let draws = if rng.random() { DRAWS } else { 0 };
    for _ in 0..draws {
        let pixels = sides[0] * sides[1];
        if pixels % width == 0 && pixels % (2 * width) != 0 {
            break;
        }
        sides = [rng.random_range(4..=15), rng.random_range(4..=15)];
    }
    let filter = *[1, 3].choose(rng).unwrap_or(&1);
    let pad = if rng.random_bool(0.7) { filter / 2 } else { 0 };
    let types = if width == 8 { [Scalar::F16; 4] } else { [Scalar::F32, Scalar::F32, Scalar::F16, Scalar::F64] };
    let dtype = *types.choose(rng).unwrap_or(&Scalar::F32);
    // Many enough for tiles that are pulled back from the edge.
    let filters = if rng.random_bool(0.6) { rng.random_range(33..=96) } else { size(rng, 64, 1) };
    let channels = rng.random_range(1..=12);
    let conv = Conv::new(dtype, rng.random_range(1..=3), channels, filters, &sides, &[filter; 2]);
    let direction = *Direction::ALL.choose(rng).unwrap_or(&Direction::Forward);
    let conv = conv.layout(Layout::Nchw).pad(&[pad; 2], &[pad; 2]).direction(direction).workspace(AMPLE);
    let conv = if direction != Direction::BackwardWeight && rng.random() { conv.bias() } else { conv };
    let conv = if rng.random_bool(0.3) { conv.residual() } else { conv };
    Ok(Problem::Conv(conv.build()?))
}

fn gemm(rng: &mut ChaCha8Rng, recipe: &Recipe, dtype: Scalar) -> Result<Problem, ProblemError> {
    // Where everything is a multiple of some vector, wide loads and stores are legal.
    let units: &[u64] = if recipe.units { &[8, 8, 8, 8, 8, 8, 1, 4] } else { &[1, 1, 2, 4, 4, 8, 8] };
    let unit = *units.choose(rng).unwrap_or(&1);
    // Bulk copies ask for lines that start at multiples of 16 bytes, not for extents that are.
    let grain = if recipe.units && rng.random_bool(0.6) { 1 } else { unit };
    let (m, n, k) = (size(rng, recipe.extent, grain), size(rng, recipe.extent, grain), depth(rng, recipe, grain));
    let order = if rng.random() { Order::Col } else { Order::Row };
    let trans: [bool; 3] = [rng.random(), rng.random(), rng.random_bool(0.25)];
    let batch = if rng.random_bool(0.55) { 1 } else { rng.random_range(2..=5) };
    let mut offsets = [0; 3];
    for offset in &mut offsets {
        *offset = if rng.random_bool(0.4) { 0 } else { rng.random_range(0..40u64) / unit * unit };
    }
    let mut builder = Gemm::new(dtype, m, n, k)
        .order(order)
        .trans(trans[0], trans[1])
        .trans_c(trans[2])
        .batch(batch)
        .offsets(offsets[0], offsets[1], offsets[2])
        .workspace(AMPLE);
    builder = builder.out_dtype(out_dtype(rng, dtype));
    if recipe.formats && rng.random_bool(0.3) {
        // B may have another type that is legal with A's.
        let goes = |other: &Scalar| *other != dtype && builder.clone().b_dtype(*other).build().is_ok();
        let others: Vec<Scalar> = FORMATS.map(|(other, _)| other).into_iter().chain(WEIGHTS).filter(goes).collect();
        builder = others.choose(rng).map_or(builder.clone(), |other| builder.b_dtype(*other));
    }
    let mut strides = [0; 3];
    let tight = builder.clone().build()?;
    for (matrix, batch_stride) in strides.iter_mut().enumerate() {
        let (line, lines) = tight.lines(matrix);
        let pad = if rng.random_bool(0.4) { 0 } else { rng.random_range(0..20u64) / unit * unit };
        let mut ld = line.next_multiple_of(unit) + pad;
        let mut stride = (ld * lines).next_multiple_of(unit);
        match rng.random_range(0..6) {
            _ if batch == 1 => {}
            // One matrix for the whole batch.
            0 | 1 if matrix < 2 => stride = 0,
            // Batch entries side by side in each line.
            2 => (stride, ld) = (ld, ld * batch),
            3 => stride += rng.random_range(0..30u64) / unit * unit,
            _ => {}
        }
        *batch_stride = stride;
        builder = match matrix {
            0 => builder.lda(ld),
            1 => builder.ldb(ld),
            _ => builder.ldc(ld),
        };
    }
    if batch > 1 {
        builder = builder.stride_a(strides[0]).stride_b(strides[1]).stride_c(strides[2]);
    }
    if rng.random_bool(0.3) {
        builder = builder.dynamic(Dynamic { g: batch > 1 && rng.random(), m: rng.random_bool(0.6), n: rng.random_bool(0.4) });
    }
    builder = epilogue(rng, builder, unit)?;
    for along in Along::ALL.into_iter().filter(|_| recipe.formats && dtype.is_int8()) {
        let how = match rng.random_range(0..8) {
            0 => ZeroPoint::Tensor,
            1 => ZeroPoint::Each,
            _ => continue,
        };
        let centred = builder.clone().zero_point(along, how);
        builder = if centred.clone().build().is_ok() { centred } else { builder };
    }
    if recipe.formats {
        for along in [Along::M, Along::N].into_iter().filter(|_| rng.random_bool(0.25)) {
            let scaled = builder.clone().scale(along);
            // Sums that stay integers, and f64, have none.
            builder = if scaled.clone().build().is_ok() { scaled } else { builder };
        }
    }
    Ok(Problem::Gemm(builder.build()?))
}

/// A type that sums of these operands may be rounded to; mostly their own, or f32.
pub fn out_dtype(rng: &mut ChaCha8Rng, dtype: Scalar) -> Scalar {
    match (dtype, rng.random_range(0..8)) {
        (Scalar::F64, _) => dtype,
        (_, 0..=2) if dtype.is_int8() => Scalar::I32,
        (_, 3 | 4) if dtype.is_int8() => dtype,
        (_, 0..=3) if !dtype.is_float8() => dtype,
        (_, 0 | 1) => dtype,
        (_, 0..=5) => Scalar::F32,
        (_, 6) => Scalar::F16,
        _ => Scalar::BF16,
    }
}

fn activation(rng: &mut ChaCha8Rng) -> Option<Activation> {
    if rng.random_bool(0.5) { None } else { Activation::ALL.choose(rng).copied() }
}

/// Gives a product a bias, an activation and a residual, or none: what is added to its sums and applied to them. Distances are
/// multiples of `unit` as often as not.
///
/// # Errors
/// Those of the product so far.
pub fn epilogue(rng: &mut ChaCha8Rng, mut builder: GemmBuilder, unit: u64) -> Result<GemmBuilder, ProblemError> {
    let tight = builder.clone().build()?;
    let batched = tight.batch > 1;
    if rng.random_bool(0.4) {
        let (along, length) = if rng.random() { (Along::M, tight.m) } else { (Along::N, tight.n) };
        let apart = if batched && rng.random() { length + rng.random_range(0..9u64) } else { 0 };
        builder = builder.bias_strided(along, if rng.random() { apart.next_multiple_of(unit) } else { apart });
    }
    let function = activation(rng).filter(|_| tight.out_dtype.is_float());
    // Of a copy of the numbers: all else of a seed stays.
    let mut of_softcap = rng.clone();
    match function {
        Some(activation) => builder = builder.activation(activation),
        None if tight.out_dtype.is_float() && of_softcap.random_bool(0.15) => {
            if let Ok(limit) = Real::try_from(of_softcap.random_range(0.5..40.0f32)) {
                builder = builder.softcap(limit);
            }
        }
        None => (),
    }
    if rng.random_bool(0.4) {
        let (line, lines) = tight.lines(2);
        builder = match rng.random_range(0..3) {
            0 => builder.residual(),
            1 => builder.ldr(line + rng.random_range(0..9u64)),
            _ => builder.ldr(line.next_multiple_of(unit)),
        };
        let ld = builder.clone().build()?.residual.map_or(line, |r| r.ld);
        if batched {
            builder = builder.stride_r(if rng.random() { 0 } else { (ld * lines).next_multiple_of(unit) });
        }
    }
    Ok(builder)
}

/// A problem with reductions of its result, which may be all there is of it; as it is where it cannot have those.
pub fn reduced(rng: &mut ChaCha8Rng, problem: &Problem) -> Problem {
    let (shape, out) = (problem.result_shape(), problem.out_dtype());
    let mut all = Vec::new();
    // Pixels of a gradient with a stride are reduced together.
    let strided = |conv: &Conv| conv.direction == Direction::BackwardData && conv.stride.iter().any(|stride| *stride > 1);
    let in_parts = matches!(problem, Problem::Conv(conv) if strided(conv));
    for _ in 0..rng.random_range(1..=3) {
        let (m, n) = [(true, false), (false, true), (true, true)][rng.random_range(0..3)];
        let g = shape.extents.g > shape.groups && rng.random_bool(0.4);
        let mut block = |over: bool, extent: u64| {
            let sizes: Vec<u64> = (2..extent).filter(|size| over && extent.is_multiple_of(*size)).collect();
            if rng.random_bool(0.3) { sizes.choose(rng).copied().unwrap_or(0) } else { 0 }
        };
        let blocks = [block(m, shape.extents.m), block(n, shape.extents.n)];
        let over = if in_parts { Axes { g, m: true, n, blocks: [0, blocks[1]] } } else { Axes { g, m, n, blocks } };
        let operator = *Operator::ALL.choose(rng).unwrap_or(&Operator::Sum);
        let dtype = match rng.random_range(0..6) {
            0 | 1 if operator.indexes() => Some(Scalar::I32),
            _ if operator.indexes() => None,
            0 if out != Scalar::F64 => Some(Scalar::BF16),
            1 if out != Scalar::F64 => Some(Scalar::F16),
            _ => None,
        };
        let drawn = Reduction { dtype, stored: rng.random_bool(0.3), ..Reduction::new(operator, over) };
        let drawn = match rng.random_range(0..10) {
            0 if !operator.indexes() => {
                let operand = if rng.random() { Along::M } else { Along::N };
                Reduction { dtype, ..Reduction::of_operand(operator, operand) }
            }
            _ => drawn,
        };
        all.push(if rng.random_bool(0.25) { of_function(rng, drawn) } else { drawn });
    }
    let mut reduced = problem.clone();
    match &mut reduced {
        Problem::Gemm(gemm) => {
            (gemm.reductions, gemm.drop_c) = (all, rng.random_bool(0.3));
        }
        Problem::Conv(conv) => (conv.reductions, conv.drop_c) = (all, rng.random_bool(0.3)),
        Problem::Reduce(_) => {}
    }
    if reduced.validate().is_ok() {
        return reduced;
    }
    // With extents known only at launch not all can be.
    if let Problem::Gemm(gemm) = &mut reduced {
        gemm.dynamic = Dynamic::NONE;
    }
    if reduced.validate().is_ok() { reduced } else { problem.clone() }
}

/// The same of a function of each element. A sum of exponentials, or of their squares, may be infinite where the mean, variance or norm is not.
fn of_function(rng: &mut ChaCha8Rng, reduction: Reduction) -> Reduction {
    match Function::ALL.choose(rng) {
        Some(Function::Exp) if matches!(reduction.operator, Operator::Mean | Operator::Var | Operator::Norm2) => reduction,
        Some(function) => reduction.of(*function),
        None => reduction,
    }
}

/// A tensor of up to four axes, with gaps and repetitions in memory, over some of them; now and then an axis is empty.
///
/// # Errors
/// None that is known.
pub fn tensor(rng: &mut ChaCha8Rng, extent: u64) -> Result<Problem, ProblemError> {
    let axes = rng.random_range(1..=4usize);
    let largest = ((extent * extent / 16) as f64).powf(1.0 / axes as f64);
    let unit = *[1, 1, 4, 8].choose(rng).unwrap_or(&1);
    let mut shape: Vec<u64> = (0..axes).map(|_| size(rng, largest.max(2.0) as u64, unit)).collect();
    if rng.random_ratio(1, 25) {
        shape[rng.random_range(0..axes)] = 0;
    }
    let over: Vec<usize> = (0..axes).filter(|_| rng.random_bool(0.6)).collect();
    let over = if over.is_empty() { vec![rng.random_range(0..axes)] } else { over };
    let dtype = *[Scalar::F32, Scalar::F16, Scalar::BF16, Scalar::F64, Scalar::I32].choose(rng).unwrap_or(&Scalar::F32);
    // Integers of all sizes.
    let dtype = if dtype == Scalar::I32 { *[dtype, Scalar::I8, Scalar::U8].choose(rng).unwrap_or(&dtype) } else { dtype };
    let integers = [Operator::Sum, Operator::Max, Operator::Min, Operator::ArgMax, Operator::ArgMin];
    let operators = if !dtype.is_float() { &integers[..] } else { &Operator::ALL };
    // There is no index of nothing.
    let none = over.iter().any(|axis| shape[*axis] == 0);
    let operators: Vec<Operator> = operators.iter().copied().filter(|operator| !(none && operator.indexes())).collect();
    let mut builder = Reduce::new(dtype, &shape, &over).op(*operators.choose(rng).unwrap_or(&Operator::Sum));
    let dense = builder.clone().build()?.strides;
    builder = match rng.random_range(0..4) {
        0 => builder.strides(&dense.iter().map(|stride| stride * 3).collect::<Vec<_>>()),
        1 => builder.strides(&dense.iter().map(|stride| if rng.random_bool(0.3) { 0 } else { *stride }).collect::<Vec<_>>()),
        _ => builder,
    };
    for _ in 0..rng.random_range(0..=2) {
        let operator = *operators.choose(rng).unwrap_or(&Operator::Max);
        builder = match rng.random_range(0..4) {
            0 if operator.indexes() || !dtype.is_float() => builder.op_in(operator, Scalar::I32),
            0 if dtype != Scalar::F64 => builder.op_in(operator, Scalar::BF16),
            1 if !dtype.is_float() => builder.op_in(operator, Scalar::I64),
            1 => builder.reduction(of_function(rng, Reduction::new(operator, COLUMNS))),
            _ => builder.op(operator),
        };
    }
    if let Some(activation) = activation(rng).filter(|_| dtype.is_float()) {
        builder = builder.activation(activation);
    }
    Ok(Problem::Reduce(builder.offset(rng.random_range(0..3) * unit).workspace(AMPLE).build()?))
}

fn conv(rng: &mut ChaCha8Rng, recipe: &Recipe, dtype: Scalar) -> Result<Problem, ProblemError> {
    let dims = rng.random_range(1..=3usize);
    let directions: &[Direction] = if recipe.convolutions {
        &Direction::ALL
    } else {
        &[Direction::Forward, Direction::Forward, Direction::BackwardData, Direction::BackwardWeight]
    };
    let direction = *directions.choose(rng).unwrap_or(&Direction::Forward);
    let far = recipe.convolutions || direction != Direction::Forward;
    let unit = *[1, 1, 2, 4, 8].choose(rng).unwrap_or(&1);
    let groups: &[u64] = if recipe.convolutions { &[1, 1, 1, 2, 3, 8] } else { &[1, 1, 1, 2, 3] };
    let groups = *groups.choose(rng).unwrap_or(&1);
    let samples = rng.random_range(1..=4);
    let extent = recipe.extent;
    // As many pixels and as deep a sum whatever the dimensions are.
    let largest = [extent / 4, (extent / 2).isqrt(), (1..=extent).take_while(|s| s.pow(3) <= extent).count() as u64][dims - 1];
    let deepest = extent / [10, 15, 30][dims - 1];
    let channels = if recipe.schedules && rng.random_bool(0.3) { 1 } else { size(rng, deepest, unit) };
    let filters = size(rng, extent / 5, unit);
    // Channels in whole rows of 128 bytes, whose windows bulk copies can bring, and little else.
    let rows = u64::from(128 / dtype.bytes());
    let windows = recipe.units && rng.random_bool(if recipe.convolutions { 0.9 } else { 0.6 });
    let (channels, filters) = if windows { (rows, rows) } else { (channels, filters) };
    let (groups, channels, filters) = match (recipe.convolutions, windows) {
        (true, true) => (1, channels, filters),
        (true, false) if groups == 8 && rng.random() => (groups, 1, 1),
        _ => (groups, channels, filters),
    };
    let mut list = |low: u64, high: u64| -> Vec<u64> { (0..dims).map(|_| rng.random_range(low..=high)).collect() };
    let input: Vec<u64> = list(1, largest).into_iter().map(|s| if s > unit { s.next_multiple_of(unit) } else { s }).collect();
    let filter = list(1, 3);
    let (begin, end) = (list(0, 2), list(0, 2));
    let (stride, dilation) = (list(1, if far { 4 } else { 2 }), list(1, 3));
    // Now and then everything plain, so that vectors along the image are legal.
    let plain = rng.random_bool(0.3);
    let ones = vec![1; dims];
    let zeros = vec![0; dims];
    let pick = |drawn: Vec<u64>, simple: &Vec<u64>| if plain { simple.clone() } else { drawn };
    let filter = if rng.random_bool(0.25) { ones.clone() } else { filter };
    let conv = Conv::new(dtype, samples, channels * groups, filters * groups, &input, &filter)
        .layout(if rng.random() && !windows { Layout::Nchw } else { Layout::Nhwc })
        .groups(groups)
        .stride(&pick(stride, &ones))
        .dilation(&pick(dilation, &ones))
        .pad(&pick(begin, &zeros), &pick(end, &zeros))
        .direction(direction)
        .workspace(AMPLE);
    let conv = if direction != Direction::BackwardWeight && rng.random() { conv.bias() } else { conv };
    let out = out_dtype(rng, dtype);
    let conv = conv.out_dtype(out);
    let conv = match rng.random_range(0..10) {
        0 | 1 => conv.residual(),
        2 => conv.mask(),
        _ => conv,
    };
    let conv = match activation(rng).filter(|_| out.is_float()) {
        Some(activation) => conv.activation(activation),
        None => conv,
    };
    Ok(Problem::Conv(conv.build()?))
}
