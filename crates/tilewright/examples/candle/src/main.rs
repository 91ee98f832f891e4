//! Products of candle's CPU tensors by tilewright, on candle's memory.
//!
//! ```sh
//! cargo run --manifest-path crates/tilewright/examples/candle/Cargo.toml
//! ```
//!
//! For its CUDA tensors there is no `cuda_fwd` here: candle 0.11 links CUDA's libraries (cudarc's feature `dynamic-linking`), this crate loads them at run
//! time (`dynamic-loading`), and cudarc does not build with both in one program. The C interface (`libtilewright.so`) has a cudarc of its own.

use candle_core::{CpuStorage, CustomOp2, Device, Error, Layout, Result, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tilewright::{Addresses, Context, Factors, Gemm, Prepared, Scalar};

/// `a.apply_op2(&b, product)` is A times B in f32, both row-major.
struct Product {
    context: Context,
    /// Operations by (m, n, k). The plan of each is looked up once, in the records or from the cost model.
    ready: Mutex<HashMap<[usize; 3], Prepared>>,
}

impl Product {
    fn on(device: &str) -> Result<Product> {
        Ok(Product { context: Context::open(device).map_err(Error::wrap)?, ready: Mutex::default() })
    }

    fn ready(&self, sizes: [usize; 3]) -> Result<Prepared> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = ready.get(&sizes) {
            return Ok(found.clone());
        }
        let [m, n, k] = sizes.map(|x| x as u64);
        let operation = self.context.gemm(Gemm::new(Scalar::F32, m, n, k)).map_err(Error::wrap)?;
        let prepared = operation.prepare().map_err(Error::wrap)?;
        ready.insert(sizes, prepared.clone());
        Ok(prepared)
    }
}

/// m, n, k, and where A and B begin.
fn read(a: &Layout, b: &Layout) -> Result<([usize; 3], [usize; 2])> {
    let ((m, k), (inner, n)) = (a.shape().dims2()?, b.shape().dims2()?);
    if k != inner || !a.is_contiguous() || !b.is_contiguous() {
        candle_core::bail!("a product of {:?} and {:?}: contiguous matrices that fit are needed", a.shape(), b.shape());
    }
    Ok(([m, n, k], [a.start_offset(), b.start_offset()]))
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "tilewright-product"
    }

    fn cpu_fwd(&self, a: &CpuStorage, a_lies: &Layout, b: &CpuStorage, b_lies: &Layout) -> Result<(CpuStorage, Shape)> {
        let (sizes, [a_at, b_at]) = read(a_lies, b_lies)?;
        let [m, n, k] = sizes;
        let (a, b) = (&a.as_slice::<f32>()?[a_at..][..m * k], &b.as_slice::<f32>()?[b_at..][..k * n]);
        let mut c = vec![0.0f32; m * n];
        let addresses = Addresses::operands([a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64]);
        let ready = self.ready(sizes)?;
        // SAFETY: the slices are as large as the problem says, and the launch copies before it returns.
        unsafe { ready.launch_on_host_memory(&addresses, Factors::default(), None) }.map_err(Error::wrap)?;
        Ok((CpuStorage::F32(c), Shape::from((m, n))))
    }
}

fn main() -> Result<()> {
    let (device, product) = (Device::Cpu, Product::on("emu")?);
    let a = Tensor::randn(0.0f32, 1.0, (96, 64), &device)?;
    // A part of a tensor begins within its memory.
    let b = Tensor::randn(0.0f32, 1.0, (65, 80), &device)?.narrow(0, 1, 64)?;
    let ours = a.apply_op2_no_bwd(&b, &product)?;
    let off = (&ours - a.matmul(&b)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    println!("{:?} on {}: off by {off:.1e}", ours.shape(), product.context.info().name);
    let refused = a.t()?.apply_op2_no_bwd(&b, &product).err().map(|e| e.to_string()).unwrap_or_default();
    if off > 1e-4 || !refused.contains("contiguous matrices") {
        candle_core::bail!("that is not right: {refused}");
    }
    Ok(())
}
