//! How a sequence of launches is timed.

use crate::DeviceError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What a timed run finds in the last-level cache.
///
/// ```
/// use tilewright_device::CacheState;
///
/// assert_eq!("warm".parse(), Ok(CacheState::Warm));
/// assert_eq!((CacheState::default().name(), "hot".parse::<CacheState>().is_err()), ("cold", true));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// Nothing of its operands: other memory is read before every run, outside of the timed span. Clean lines, so that nothing is
    /// written back within the span either.
    #[default]
    Cold,
    /// What a run of the same work right before it leaves there. Runs follow back to back, as layers of a network are run again
    /// and again.
    Warm,
}

impl CacheState {
    /// The word in records and options: `cold` or `warm`.
    pub const fn name(self) -> &'static str {
        match self {
            CacheState::Cold => "cold",
            CacheState::Warm => "warm",
        }
    }
}

impl FromStr for CacheState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = [CacheState::Cold, CacheState::Warm];
        known.into_iter().find(|c| c.name() == text).ok_or_else(|| format!("`{text}` is no state of a cache: write cold or warm"))
    }
}

/// How [`crate::Device::time`] measures.
///
/// ```
/// use tilewright_device::{CacheState, DeviceError, Timing, open};
///
/// // 20 repeats, each after another run of the same work.
/// let timing = Timing { cache: CacheState::Warm, repeats: 20 };
/// // The emulator has no times.
/// let timed = open("emu")?.time(&[], &timing);
/// assert!(matches!(timed, Err(DeviceError::NotTimed { .. })));
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// What each repeat finds in the last-level cache.
    pub cache: CacheState,
    /// Measured repeats of the whole sequence.
    pub repeats: u32,
}

impl Timing {
    /// Runs with cold caches.
    pub const fn cold(repeats: u32) -> Timing {
        Timing { cache: CacheState::Cold, repeats }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing::cold(1)
    }
}

/// The error of a sample whose hold of the device ran out of time.
pub(crate) fn hold_expired(device: &str) -> DeviceError {
    let reason = "the host had not queued the timed work within 2 s, so that the time holds host time: a call waits for the device, \
                  or the host is overloaded";
    DeviceError::Api { device: device.into(), call: "the hold of the device", reason: reason.into() }
}
