//! Problems lowered to contractions, and the views that these are made of.

mod lowering;
mod views;
