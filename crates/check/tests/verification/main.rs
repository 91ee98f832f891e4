//! The references against definitions, and verification against programs that are wrong on purpose.

#[macro_use]
#[path = "../../../device/tests/common/delegated.rs"]
mod delegated;
mod complete;
mod gradients;
mod poison;
mod special;
mod verify;
