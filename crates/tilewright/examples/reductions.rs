//! What reductions beside a product or a convolution are for: five uses, each in one launch that reads the operands once and no result again.
//!
//! Run with `cargo run --release -p tilewright --example reductions`; each prints the plan that was taken and the first of its values.

use tilewright::{Buffer, Context, Conv, Direction, Error, Gemm, Layout, Operands, Operation, Order, Scalar, bf16};

/// Largest number of an 8-bit float with four bits of exponent.
const FP8_MAX: f32 = 448.0;

/// Texts of reductions are refused in words.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Memory for the values of a reduction.
fn values(context: &Context, count: u64) -> Result<Buffer<f32>, Error> {
    context.alloc(count)
}

fn report(what: &str, op: &Operation, first: impl std::fmt::Debug) -> Result<(), Error> {
    println!("{what}: {first:?}... by {}", op.plan()?);
    Ok(())
}

/// A language model's last layer: of each token the likeliest word and the logarithm of the sum of exponentials, from which log
/// probabilities follow. The logits, tokens x vocabulary, are never stored.
fn logits(
    context: &Context,
    hidden: &[bf16],
    words: &[bf16],
    [tokens, vocabulary, k]: [u64; 3],
) -> Outcome<(Vec<i64>, Vec<f32>)> {
    let gemm = Gemm::new(Scalar::BF16, tokens, vocabulary, k).order(Order::Row).trans(false, true).out_dtype(Scalar::F32);
    let op = context.gemm(gemm.drop_c().reduce("argmax:n".parse()?).reduce("logsumexp:n".parse()?))?;
    let (x, w) = (context.upload(hidden)?, context.upload(words)?);
    let (mut best, mut totals) = (context.alloc::<i64>(tokens)?, values(context, tokens)?);
    op.run_with(Operands::<bf16, f32>::without_c(&x, &w).reduction(&mut best).reduction(&mut totals))?;
    let found = (best.download()?, totals.download()?);
    report("likeliest words", &op, found.0.first())?;
    Ok(found)
}

/// The scale of each 128 columns of a row by which the product is to be quantised to 8 bits: largest magnitudes of what is stored.
fn fp8_scales(context: &Context, a: &[bf16], b: &[bf16], [m, n, k]: [u64; 3]) -> Outcome<Vec<f32>> {
    let gemm = Gemm::new(Scalar::BF16, m, n, k).order(Order::Row).reduce("absmax:n128:stored".parse()?);
    let op = context.gemm(gemm)?;
    let (a, b) = (context.upload(a)?, context.upload(b)?);
    let (mut c, mut largest) = (context.alloc::<bf16>(m * n)?, values(context, m * n / 128)?);
    op.run_with(Operands::new(&a, &b, &mut c).reduction(&mut largest))?;
    let scales: Vec<f32> = largest.download()?.into_iter().map(|x| x / FP8_MAX).collect();
    report("scales for 8 bits", &op, scales.first())?;
    Ok(scales)
}

/// A transformer's projection with its residual, and what the next RMSNorm divides each row by.
fn rms_norm(context: &Context, a: &[bf16], b: &[bf16], skip: &[bf16], [m, n, k]: [u64; 3]) -> Outcome<Vec<f32>> {
    let gemm = Gemm::new(Scalar::BF16, m, n, k).order(Order::Row).residual().reduce("mean.square:n".parse()?);
    let op = context.gemm(gemm)?;
    let (a, b, skip) = (context.upload(a)?, context.upload(b)?, context.upload(skip)?);
    let (mut c, mut squares) = (context.alloc::<bf16>(m * n)?, values(context, m)?);
    op.run_with(Operands::new(&a, &b, &mut c).residual(&skip).reduction(&mut squares))?;
    let norms: Vec<f32> = squares.download()?.into_iter().map(|mean| (mean + 1e-6).sqrt()).collect();
    report("norms of rows", &op, norms.first())?;
    Ok(norms)
}

/// A convolution, and mean and variance of each channel over samples and pixels, for batch normalisation.
fn batch_norm(context: &Context, x: &[f32], w: &[f32], [n, c, k, size]: [u64; 4]) -> Outcome<(Vec<f32>, Vec<f32>)> {
    let conv = Conv::new(Scalar::F32, n, c, k, &[size; 2], &[3; 2]).pad(&[1; 2], &[1; 2]).layout(Layout::Nhwc);
    let op = context.conv(conv.reduce("mean:bm".parse()?).reduce("var:bm".parse()?))?;
    let (x, w) = (context.upload(x)?, context.upload(w)?);
    let mut y = context.alloc::<f32>(n * k * size * size)?;
    let (mut mean, mut var) = (values(context, k)?, values(context, k)?);
    op.run_with(Operands::new(&x, &w, &mut y).reduction(&mut mean).reduction(&mut var))?;
    let found = (mean.download()?, var.download()?);
    report("means of channels", &op, found.0.first())?;
    Ok(found)
}

/// The gradient of the bias of a layer with a ReLU. The next layer's input gradient is masked by `before`, the ReLU's output, and summed
/// over samples and pixels.
fn bias_gradient(context: &Context, dy: &[f32], w: &[f32], before: &[f32], [n, c, k, size]: [u64; 4]) -> Outcome<Vec<f32>> {
    let conv = Conv::new(Scalar::F32, n, c, k, &[size; 2], &[1; 2]).layout(Layout::Nhwc).direction(Direction::BackwardData);
    let op = context.conv(conv.mask().reduce("sum:bm".parse()?))?;
    let (dy, w, before) = (context.upload(dy)?, context.upload(w)?, context.upload(before)?);
    let (mut dx, mut bias) = (context.alloc::<f32>(n * c * size * size)?, values(context, c)?);
    op.run_with(Operands::new(&dy, &w, &mut dx).residual(&before).reduction(&mut bias))?;
    let found = bias.download()?;
    report("gradients of the bias", &op, found.first())?;
    Ok(found)
}

/// Small numbers that every type holds.
fn small(count: u64, by: u64) -> Vec<f32> {
    (0..count).map(|i| (i * by % 11) as f32 / 4.0 - 1.25).collect()
}

fn in_bf16(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|x| bf16::from_f32(*x)).collect()
}

fn main() -> Outcome<()> {
    // Plans are tried in another process of this program.
    tilewright::worker_main();
    let context = Context::new()?;
    let [m, n, k] = [64, 512, 128];
    let (a, b) = (in_bf16(&small(m * k, 7)), in_bf16(&small(k * n, 5)));
    logits(&context, &a, &b, [m, n, k])?;
    fp8_scales(&context, &a, &b, [m, n, k])?;
    rms_norm(&context, &a, &b, &in_bf16(&small(m * n, 3)), [m, n, k])?;
    let image = [4, 16, 32, 14];
    let [samples, c, k, size] = image;
    batch_norm(&context, &small(samples * c * size * size, 7), &small(k * c * 9, 5), image)?;
    let pixels = samples * size * size;
    bias_gradient(&context, &small(pixels * k, 7), &small(k * c, 5), &small(pixels * c, 3), image)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright::{Options, RecordsAt};

    fn context() -> Context {
        let options = Options { device: Some("emu:sm_90a".into()), records: RecordsAt::Memory, ..Options::default() };
        Context::with(options).expect("the emulator opens")
    }

    fn near(what: &str, got: &[f32], want: impl IntoIterator<Item = f64>) {
        let want: Vec<f64> = want.into_iter().collect();
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() <= 1e-4 * want.abs().max(1.0), "{what}: {got} instead of {want} at {i}");
        }
    }

    /// Rows of a product. B is (k, n) or, transposed, (n, k).
    fn product(a: &[f32], b: &[f32], [m, n, k]: [u64; 3], transposed: bool) -> Vec<Vec<f64>> {
        let [m, n, k] = [m, n, k].map(|x| x as usize);
        let at = |l: usize, j: usize| f64::from(b[if transposed { j * k + l } else { l * n + j }]);
        let element = |i: usize, j: usize| (0..k).map(|l| f64::from(a[i * k + l]) * at(l, j)).sum();
        (0..m).map(|i| (0..n).map(|j| element(i, j)).collect()).collect()
    }

    #[test]
    fn products() {
        let (context, sizes @ [m, n, k]) = (context(), [12, 256, 24]);
        let (a, b, skip) = (small(m * k, 7), small(k * n, 5), small(m * n, 3));
        let (wa, wb) = (in_bf16(&a), in_bf16(&b));
        let rows = product(&a, &b, sizes, true);
        let (best, totals) = logits(&context, &wa, &wb, sizes).expect("logits");
        for (row, best) in rows.iter().zip(best) {
            let first = row.iter().position(|x| row.iter().all(|y| x >= y));
            assert_eq!(first, Some(best as usize));
        }
        near("log-sum-exp", &totals, rows.iter().map(|row| row.iter().map(|x| x.exp()).sum::<f64>().ln()));
        let rows = product(&a, &b, sizes, false);
        let stored = |x: f64| bf16::from_f64(x).to_f64();
        let largest = rows
            .iter()
            .flat_map(|row| row.chunks(128))
            .map(|block| block.iter().fold(0.0, |most: f64, x| most.max(stored(*x).abs())));
        near("scales", &fp8_scales(&context, &wa, &wb, sizes).expect("scales"), largest.map(|x| x / f64::from(FP8_MAX)));
        let norms = rms_norm(&context, &wa, &wb, &in_bf16(&skip), sizes).expect("norms");
        let square = |(i, row): (usize, &Vec<f64>)| {
            let added = row.iter().zip(&skip[i * n as usize..]).map(|(x, skip)| x + f64::from(*skip));
            (added.map(|x| x * x).sum::<f64>() / n as f64 + 1e-6).sqrt()
        };
        near("norms", &norms, rows.iter().enumerate().map(square));
    }

    #[test]
    fn convolutions() {
        let (context, image @ [n, c, k, size]) = (context(), [2u64, 4, 8, 6]);
        let (pixels, side) = (n * size * size, size as i64);
        let (x, w) = (small(pixels * c, 7), small(k * c * 9, 5));
        // Filters are (k, r, s, c) beside images of (n, h, w, c).
        let element = |pixel: u64, filter: u64| {
            let (sample, at) = (pixel / (size * size), (pixel % (size * size)) as i64);
            let mut sum = 0.0;
            for tap in 0..9 {
                let (row, column) = (at / side + tap / 3 - 1, at % side + tap % 3 - 1);
                if (0..side).contains(&row) && (0..side).contains(&column) {
                    let from = ((sample as i64 * side + row) * side + column) as u64 * c;
                    sum += (0..c)
                        .map(|i| f64::from(x[(from + i) as usize]) * f64::from(w[((filter * 9 + tap as u64) * c + i) as usize]))
                        .sum::<f64>();
                }
            }
            sum
        };
        let of_channel = |filter: u64| {
            let mean = (0..pixels).map(|pixel| element(pixel, filter)).sum::<f64>() / pixels as f64;
            (mean, (0..pixels).map(|pixel| (element(pixel, filter) - mean).powi(2)).sum::<f64>() / pixels as f64)
        };
        let (mean, var) = batch_norm(&context, &x, &w, image).expect("statistics");
        near("means", &mean, (0..k).map(|filter| of_channel(filter).0));
        near("variances", &var, (0..k).map(|filter| of_channel(filter).1));
        let (dy, filter, before) = (small(pixels * k, 7), small(k * c, 5), small(pixels * c, 3));
        let gradient = |pixel: u64, channel: u64| {
            let kept = before[(pixel * c + channel) as usize] > 0.0;
            let each = |i: u64| f64::from(dy[(pixel * k + i) as usize]) * f64::from(filter[(i * c + channel) as usize]);
            if kept { (0..k).map(each).sum() } else { 0.0 }
        };
        let bias = bias_gradient(&context, &dy, &filter, &before, image).expect("a gradient");
        near("bias", &bias, (0..c).map(|channel| (0..pixels).map(|pixel| gradient(pixel, channel)).sum::<f64>()));
    }
}
