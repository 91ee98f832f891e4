//! A language model's layer while it decodes: the number of tokens changes from step to step, the weights stay.
//!
//! Kernels are compiled once for each bucket of token counts, at first use; no step compiles for its own size.
//! Run with `cargo run --release -p tilewright --example decode`.

use std::time::Instant;
use tilewright::{Buckets, Context, Dynamic, Error, Extent, Gemm, Operands, Order, Scalar, bf16};

/// Numbers per token, before and after the layer.
const HIDDEN: u64 = 512;
const OUT: u64 = 256;
/// Most tokens of a step.
const CAPACITY: u64 = 256;

fn main() -> Result<(), Error> {
    // Plans are tried in another process of this program.
    tilewright::worker_main();
    let context = Context::new()?;
    // y[tokens, OUT] = x[tokens, HIDDEN] * w[OUT, HIDDEN] transposed, as inference libraries store weights.
    let layer = Gemm::new(Scalar::BF16, CAPACITY, OUT, HIDDEN)
        .order(Order::Row)
        .trans(false, true)
        .out_dtype(Scalar::F32)
        .dynamic(Dynamic { m: true, ..Dynamic::NONE })
        .build()?;
    let buckets = Buckets::new(&context, &layer, Extent::M, &[16, 64])?;

    let weights = context.upload(&vec![bf16::from_f32(0.5); (OUT * HIDDEN) as usize])?;
    let x = context.upload(&vec![bf16::from_f32(1.0); (CAPACITY * HIDDEN) as usize])?;
    let mut y = context.alloc::<f32>(CAPACITY * OUT)?;

    // Requests come and go: a prompt of 200 tokens, then steps with one token for each request.
    for tokens in [200, 1, 2, 3, 17, 16, 33, 1, 256] {
        let start = Instant::now();
        let plan = buckets.run_with(Operands::new(&x, &weights, &mut y).at(buckets.extents().with(Extent::M, tokens)))?;
        context.sync()?;
        println!(
            "{tokens:>4} tokens: {:>9.1} us, {} programs so far, {plan}",
            start.elapsed().as_secs_f64() * 1e6,
            context.programs()
        );
    }
    let first = y.download()?.first().copied();
    println!("y[0, 0] = {first:?}, {} expected", HIDDEN as f32 / 2.0);
    Ok(())
}
