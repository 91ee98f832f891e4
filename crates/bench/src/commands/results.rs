//! `results`: the page and the plots of published results.

use crate::args::ResultsArgs;
use crate::error::BenchError;
use crate::results::{page::page, plot, read};

/// Writes `results.md`, `speed-light.svg` and `speed-dark.svg` into the folder of benchmarks.
///
/// # Errors
/// Files that cannot be read or written; rows of `sets.csv` that contradict their records.
pub fn results(args: ResultsArgs) -> Result<(), BenchError> {
    let results = read(&args.folder)?;
    let files = [
        ("results.md", page(&results)),
        ("speed-light.svg", plot::speed(&results.whole, &plot::LIGHT)),
        ("speed-dark.svg", plot::speed(&results.whole, &plot::DARK)),
    ];
    for (name, text) in files {
        let path = args.folder.join(name);
        std::fs::write(&path, text).map_err(|e| BenchError::unwritable(&path, &e))?;
        println!("{}", path.display());
    }
    Ok(())
}
