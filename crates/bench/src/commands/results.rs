//! `results`: the page and the plots of published results.

use crate::args::ResultsArgs;
use crate::error::BenchError;
use crate::results::{page::page, plot, read};

/// Writes `results.md` and the plots into the folder of benchmarks: `speed` has a line for each set, `overview` one for each record file.
///
/// # Errors
/// Files that cannot be read or written; rows of `sets.csv` that contradict their records.
pub fn results(args: ResultsArgs) -> Result<(), BenchError> {
    let results = read(&args.folder)?;
    let files = [
        ("results.md", page(&results)),
        ("speed-light.svg", plot::speed(&results.whole, &plot::LIGHT)),
        ("speed-dark.svg", plot::speed(&results.whole, &plot::DARK)),
        ("overview-light.svg", plot::overview(&results.whole, &plot::LIGHT)),
        ("overview-dark.svg", plot::overview(&results.whole, &plot::DARK)),
    ];
    for (name, text) in files {
        let path = args.folder.join(name);
        std::fs::write(&path, text).map_err(|e| BenchError::unwritable(&path, &e))?;
        println!("{}", path.display());
    }
    Ok(())
}
