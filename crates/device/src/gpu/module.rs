//! A kernel loaded on a GPU: its tensor maps, and the one place that hands arguments to the driver.

use super::{Context, Driver, EncodedMap, Failure, Handle, LaunchSize, Loaded};
use crate::device::{resized, within};
use crate::foreign::{MapExtents, Number, Value};
use crate::{Compiled, Stream};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_ir::{ArgKind, MAX_ARGS, MAX_MAPS, Scalar, TensorMap};

/// Tensor maps kept per kernel.
const MAPS: usize = 256;

pub(super) struct Module<D: Driver> {
    pub context: Arc<Context<D>>,
    pub loaded: Loaded,
    pub dynamic_shared: u32,
    /// Tensor maps by argument, address and extents.
    pub maps: Mutex<HashMap<(usize, u64, MapExtents), EncodedMap>>,
    /// It was started before.
    pub ran: AtomicBool,
    /// A graph has captured a launch of it. Nobody tells when that graph is gone: the module then stays loaded.
    pub captured: AtomicBool,
}

/// Why a launch did not start.
pub(super) enum Refused {
    Arguments(String),
    Driver(Failure),
}

impl<D: Driver> Module<D> {
    /// The encoded form of tensor map `n` over the memory from an address on.
    fn map(&self, n: usize, map: &TensorMap, address: u64, extents: MapExtents) -> Result<EncodedMap, String> {
        let maps = || self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (n, address, extents);
        if let Some(encoded) = maps().get(&key) {
            return Ok(*encoded);
        }
        let map = resized(map, within(map, &extents))?;
        let encoded = self.context.driver.tensor_map(&map, address).map_err(|f| format!("{} failed: {}", f.call, f.reason))?;
        let mut maps = maps();
        if maps.len() >= MAPS {
            maps.clear();
        }
        maps.insert(key, encoded);
        Ok(encoded)
    }

    /// Starts the kernel. `early`: it may begin before the launch ahead of it has ended.
    ///
    /// # Safety
    /// Addresses must be those of memory as the kernel accesses it.
    pub(super) unsafe fn start(
        &self,
        kernel: &Compiled,
        stream: Stream,
        grid: [u32; 3],
        early: bool,
        args: &[Value],
    ) -> Result<(), Refused> {
        let declared = kernel.args();
        if args.len() != declared.len() || args.len() > MAX_ARGS {
            let (given, has) = (args.len(), declared.len());
            return Err(Refused::Arguments(format!("{given} arguments given, {has} declared, at most {MAX_ARGS} possible")));
        }
        let (mut words, mut maps) = ([[0u8; 8]; MAX_ARGS], [EncodedMap([0; 16]); MAX_MAPS]);
        let mut params = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        let (mut free_words, mut free_maps) = (words.iter_mut(), maps.iter_mut());
        for (n, (arg, declared)) in args.iter().zip(declared).enumerate() {
            let refused = |reason: String| Refused::Arguments(format!("`{}`: {reason}", declared.name));
            let word = match (*arg, &declared.kind) {
                (Value::Map(address, extents), ArgKind::TensorMap(map)) => {
                    let encoded = self.map(n, map, address, extents).map_err(refused)?;
                    let Some(room) = free_maps.next() else {
                        return Err(refused(format!("at most {MAX_MAPS} tensor maps are possible")));
                    };
                    *room = encoded;
                    params[n] = room.0.as_mut_ptr().cast();
                    continue;
                }
                (Value::Address(v), ArgKind::Buffer { .. }) => v.to_ne_bytes(),
                (Value::Number(Number::I32(v)), ArgKind::Scalar(Scalar::I32 | Scalar::U32)) => u64::from(v as u32).to_le_bytes(),
                (Value::Number(Number::I64(v)), ArgKind::Scalar(Scalar::I64)) => v.to_ne_bytes(),
                (Value::Number(Number::F32(v)), ArgKind::Scalar(Scalar::F32)) => u64::from(v.to_bits()).to_le_bytes(),
                (Value::Number(Number::F64(v)), ArgKind::Scalar(Scalar::F64)) => v.to_ne_bytes(),
                (value, _) => return Err(refused(format!("{value:?} was given"))),
            };
            if let Some(room) = free_words.next() {
                *room = word;
                params[n] = room.as_mut_ptr().cast();
            }
        }
        let size = LaunchSize { grid, threads: kernel.threads(), shared: self.dynamic_shared };
        let stream = Handle(stream.0);
        let driver = &self.context.driver;
        if !self.captured.load(Ordering::Relaxed) && stream.0 != driver.stream().0 && driver.is_capturing(stream) {
            self.captured.store(true, Ordering::Relaxed);
        }
        // SAFETY: number and types of the arguments are those the kernel declares, which its source was printed from. Their
        // values outlive the call. The caller vouches for the addresses.
        unsafe { driver.launch(stream, self.loaded.function, size, early, &mut params[..args.len()]) }
            .map_err(Refused::Driver)?;
        self.ran.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// It was started before.
    pub(super) fn has_run(&self) -> bool {
        self.ran.load(Ordering::Relaxed)
    }
}

impl<D: Driver> Drop for Module<D> {
    fn drop(&mut self) {
        if self.captured.load(Ordering::Relaxed) {
            // Nor does its context end.
            std::mem::forget(self.context.clone());
        } else if let Some(driver) = self.context.to_free() {
            self.context.gate.pass();
            driver.unload(self.loaded.module);
        }
    }
}
