//! Products of candle's tensors by tilewright: on candle's memory, and on a GPU on its stream.
//!
//! ```sh
//! cargo run --manifest-path crates/tilewright/examples/candle/Cargo.toml                              # CPU tensors, by the built-in device
//! cargo run --release --manifest-path crates/tilewright/examples/candle/Cargo.toml --features cuda    # CUDA tensors where they are; needs nvcc
//! ```

use candle_core::{CpuStorage, CustomOp2, Device, Error, Layout, Result, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tilewright::{Addresses, Context, Factors, Gemm, Prepared, Scalar};

/// `a.apply_op2(&b, product)` is A times B, of f32 and rows behind rows.
struct Product {
    context: Context,
    /// By m, n, k and what divides the addresses of A and B: what a product runs with is looked up once, in the records or from the cost model.
    ready: Mutex<HashMap<([usize; 3], [u64; 2]), Prepared>>,
}

impl Product {
    fn on(device: &str) -> Result<Product> {
        Ok(Product { context: Context::open(device).map_err(Error::wrap)?, ready: Mutex::default() })
    }

    /// Kernels for operands at these addresses. candle's allocations begin at multiples of 256 bytes.
    fn ready(&self, sizes: [usize; 3], addresses: [u64; 2]) -> Result<Prepared> {
        let alignments = addresses.map(|address| 1 << address.trailing_zeros().min(8));
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = ready.get(&(sizes, alignments)) {
            return Ok(found.clone());
        }
        let [m, n, k] = sizes.map(|x| x as u64);
        let operation = self.context.gemm(Gemm::new(Scalar::F32, m, n, k)).map_err(Error::wrap)?;
        let [a, b] = alignments;
        let prepared = operation.prepare_for([a, b, 256]).map_err(Error::wrap)?;
        ready.insert((sizes, alignments), prepared.clone());
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
        let addresses =
            Addresses { a: a.as_ptr() as u64, b: b.as_ptr() as u64, c: c.as_mut_ptr() as u64, ..Addresses::default() };
        // Where they begin matters to nobody: they are copied.
        let ready = self.ready(sizes, [0, 0])?;
        // SAFETY: the slices are as large as the problem says, and the launch copies before it returns.
        unsafe { ready.launch_on_host_memory(&addresses, Factors::default(), None) }.map_err(Error::wrap)?;
        Ok((CpuStorage::F32(c), Shape::from((m, n))))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &candle_core::CudaStorage,
        a_lies: &Layout,
        b: &candle_core::CudaStorage,
        b_lies: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
        let (sizes, [a_at, b_at]) = read(a_lies, b_lies)?;
        let [m, n, k] = sizes;
        let (device, stream) = (a.device(), a.device().cuda_stream());
        let (a, b) = (a.as_cuda_slice::<f32>()?.slice(a_at..a_at + m * k), b.as_cuda_slice::<f32>()?.slice(b_at..b_at + k * n));
        // SAFETY: the product writes all of it.
        let mut c = unsafe { device.alloc::<f32>(m * n)? };
        {
            let ((a, _a), (b, _b)) = (a.device_ptr(&stream), b.device_ptr(&stream));
            let ready = self.ready(sizes, [a, b])?;
            // SAFETY: nobody reads it before it was written.
            let mut space = unsafe { device.alloc::<u8>(ready.workspace_bytes().max(1) as usize)? };
            let ((c, _c), (workspace, _space)) = (c.device_ptr_mut(&stream), space.device_ptr_mut(&stream));
            let addresses = Addresses { a, b, c, workspace, ..Addresses::default() };
            let on = tilewright::Stream(stream.cu_stream() as usize);
            // SAFETY: memory of candle's device, as large as the problem says, in the order of candle's stream.
            unsafe { ready.launch(on, &addresses, Factors::default(), None) }.map_err(Error::wrap)?;
        }
        Ok((candle_core::CudaStorage::wrap_cuda_slice(c, device.clone()), Shape::from((m, n))))
    }
}

fn main() -> Result<()> {
    let (device, name) = if cfg!(feature = "cuda") { (Device::new_cuda(0)?, "cuda:0") } else { (Device::Cpu, "emu") };
    let product = Product::on(name)?;
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
