//! Which of many problems this process tunes, where several share them: `--part I/N`, or what Slurm or MPI say of the process.

use crate::error::CliError;
use tilewright_bench::values::{MOST_PARTS, Part};

/// A share, and the option or the variables that name it.
struct Named {
    part: Part,
    by: String,
}

/// The share of a process that Slurm or MPI started beside others. Tasks of an array share, and so do the processes of one step.
fn of_process(variable: &dyn Fn(&str) -> Option<String>) -> Option<Named> {
    let number = |name: &str| variable(name)?.trim().parse::<u64>().ok();
    let pair = |index: &str, of: &str| {
        let part = Part { index: number(index)?, of: number(of)? };
        (part.index < part.of).then(|| Named { part, by: format!("{index}, {of}") })
    };
    let array = || {
        let (id, first, last) =
            (number("SLURM_ARRAY_TASK_ID")?, number("SLURM_ARRAY_TASK_MIN")?, number("SLURM_ARRAY_TASK_MAX")?);
        let of = number("SLURM_ARRAY_TASK_COUNT")?;
        // Tasks need not be numbered without gaps; with an even step they are found by their place.
        let step = (last.checked_sub(first)? / of.saturating_sub(1).max(1)).max(1);
        let part = Part { index: id.checked_sub(first)? / step, of };
        (part.index < part.of).then(|| Named { part, by: "SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT".into() })
    };
    // The number of tasks of a job is there in its batch script, too, which runs once: that of a step is not.
    let step = pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        .or_else(|| pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
        .or_else(|| pair("PMI_RANK", "PMI_SIZE"));
    match (array(), step) {
        (Some(array), Some(step)) => {
            let (a, s) = (array.part, step.part);
            let part = Part { index: a.index * s.of + s.index, of: a.of * s.of };
            Some(Named { part, by: format!("{}, {}", array.by, step.by) })
        }
        (array, step) => array.or(step),
    }
}

/// The problems of a share, in their order: by falling work, the parts take turns, there and back again. Every process of the same list cuts
/// it alike.
fn cut(part: Part, work: &[f64]) -> Vec<usize> {
    let mut heaviest: Vec<usize> = (0..work.len()).collect();
    heaviest.sort_by(|x, y| work[*y].total_cmp(&work[*x]).then(x.cmp(y)));
    let mine = |(turn, _): &(u64, usize)| {
        let (round, place) = (turn / part.of, turn % part.of);
        part.index == if round % 2 == 0 { place } else { part.of - 1 - place }
    };
    let mut mine: Vec<usize> = (0..).zip(heaviest).filter(mine).map(|(_, n)| n).collect();
    mine.sort_unstable();
    mine
}

/// Leaves this process its share of several problems with so much work each: the one that is named, else what the process's surroundings
/// say.
pub fn take<T>(given: Option<Part>, list: &mut Vec<T>, work: impl Fn(&T) -> f64) -> Result<(), CliError> {
    let Named { part, by } = match given {
        Some(part) => Named { part, by: "--part".into() },
        None if list.len() < 2 => return Ok(()),
        None => match of_process(&|name| std::env::var(name).ok()) {
            Some(named) if named.part.of > 1 && named.part.of <= MOST_PARTS => named,
            _ => return Ok(()),
        },
    };
    let all = list.len();
    let work: Vec<f64> = list.iter().map(work).collect();
    let mut mine = cut(part, &work).into_iter().peekable();
    let mut number = 0;
    list.retain(|_| {
        number += 1;
        mine.next_if_eq(&(number - 1)).is_some()
    });
    eprintln!("part {} of {} ({by}): {} of {all} problems", part.index + 1, part.of, list.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_in_one_share_and_heavy_ones_are_spread() {
        let work: Vec<f64> = (0..29).map(|n| f64::from((n * 7) % 29 + 1).powi(2)).collect();
        for of in [1, 2, 3, 8, 29, 40] {
            let shares: Vec<Vec<usize>> = (0..of).map(|index| cut(Part { index, of }, &work)).collect();
            let mut all: Vec<usize> = shares.concat();
            all.sort_unstable();
            assert_eq!(all, (0..29).collect::<Vec<_>>(), "{of}");
            let totals: Vec<f64> = shares.iter().map(|share| share.iter().map(|n| work[*n]).sum()).collect();
            let heaviest = work.iter().copied().fold(0.0, f64::max);
            let (least, most) = (totals.iter().copied().fold(f64::MAX, f64::min), totals.iter().copied().fold(0.0, f64::max));
            assert!(most - least <= heaviest, "{of}: {totals:?}");
        }
    }

    #[test]
    fn slurm_and_mpi_say_which_share() {
        let detected = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
            of_process(&find).map(|named| (named.part.index, named.part.of))
        };
        let array = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_MAX", "16"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
        ];
        assert_eq!(detected(&array), Some((2, 4)));
        assert_eq!(detected(&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")]), Some((3, 8)));
        assert_eq!(detected(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), Some((0, 2)));
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "3")];
        assert_eq!(detected(&step), Some((1, 3)));
        assert_eq!(detected(&[array, [step[0], step[1], ("", ""), ("", "")]].concat()), Some((7, 12)));
        // A batch script runs once, whatever its job's steps will have.
        assert_eq!(detected(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None);
        assert_eq!(detected(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]), None);
        assert_eq!(detected(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]), None);
        assert_eq!(detected(&[]), None);
    }
}
