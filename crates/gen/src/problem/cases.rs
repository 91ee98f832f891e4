//! Case files: CSVs of problems.
