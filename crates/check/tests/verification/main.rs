//! The references against definitions, and verification against programs that are wrong on purpose.

mod gradients;
mod verify;
