//! Launches whose memories are a list of roles and addresses.

use crate::grown::{self, Grown, grown};
use crate::prepared::{TwPrepared, extents};
use crate::status::{Failure, TwStatus, entry};
use crate::text::held;
use std::ffi::c_void;
use tilewright::{Addresses, Factors, MOST_REDUCTIONS, Role, Stream};

/// The number of the first reduction's role in the header.
const FIRST_REDUCTION: i32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwMemory {
    pub role: i32,
    pub address: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwCall {
    pub size: usize,
    pub memories: *const TwMemory,
    pub count: usize,
    pub alpha: f64,
    pub beta: f64,
    pub alpha_im: f64,
    pub beta_im: f64,
    pub extents: *const i64,
}

impl Grown for TwCall {
    const NAME: &'static str = "tw_call";
    const FIRST: usize = 64;
    fn defaults() -> Self {
        let (memories, extents) = (std::ptr::null(), std::ptr::null());
        TwCall { size: size_of::<Self>(), memories, count: 0, alpha: 1.0, beta: 0.0, alpha_im: 0.0, beta_im: 0.0, extents }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_call_init(call: *mut TwCall, size: usize, memories: *const TwMemory, count: usize) {
    // SAFETY: as the header asks.
    unsafe { grown::write(&TwCall { memories, count, ..TwCall::defaults() }, call, size) };
}

/// The role that a number of the header names.
fn role(number: i32) -> Result<Role, Failure> {
    let reduction = number
        .checked_sub(FIRST_REDUCTION)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|&n| n < MOST_REDUCTIONS)
        .map(Role::Reduction);
    let single = usize::try_from(number).ok().and_then(|n| Role::all().find(|r| r.index() == n));
    let named = reduction.or(single.filter(|r| !matches!(r, Role::Reduction(_))));
    named.ok_or_else(|| Failure::argument(format!("role = {number} names nothing: see tw_role in tilewright.h")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_launch_call(prepared: *const TwPrepared, call: *const TwCall, stream: *mut c_void) -> TwStatus {
    entry(|| {
        // SAFETY: as the header asks.
        let (prepared, call) = (held(prepared)?, unsafe { grown(call, "call") }?);
        if call.count > 0 && call.memories.is_null() {
            return Err(Failure::argument(format!("`memories` is NULL and `count` is {}", call.count)));
        }
        if call.count > Role::COUNT {
            return Err(Failure::argument(format!("count = {}: there are {} roles", call.count, Role::COUNT)));
        }
        let mut addresses = Addresses::default();
        for n in 0..call.count {
            // SAFETY: the caller's list has so many entries.
            let memory = unsafe { call.memories.add(n).read() };
            let role = role(memory.role)?;
            if addresses.of(role) != 0 {
                return Err(Failure::argument(format!("the role {} is in the list twice", role.name())));
            }
            addresses.set(role, memory.address as u64);
        }
        let factors = Factors { alpha: call.alpha, beta: call.beta, alpha_im: call.alpha_im, beta_im: call.beta_im };
        // SAFETY: as the header asks: null, or three numbers.
        let extents = unsafe { extents(call.extents) };
        // SAFETY: the caller vouches for memory and stream, as the header asks.
        Ok(unsafe { prepared.0.launch(Stream(stream as usize), &addresses, factors, extents) }?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_number_and_no_other_number_has_one() {
        let ends = [i32::MIN, i32::MIN + 1, i32::MAX];
        let named: Vec<_> = (-2..64).chain(ends).filter_map(|number| role(number).ok()).collect();
        let mut all: Vec<_> = Role::all().collect();
        all.sort_by_key(|role| role.index());
        assert_eq!(named, all);
    }
}
