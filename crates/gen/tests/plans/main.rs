//! Plans: their texts, what they derive to, and every reason for which one is refused.

mod derive;
mod grammar;
