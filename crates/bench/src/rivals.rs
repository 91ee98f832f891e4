//! Vendor libraries opened for a device, and one case measured against all of them.

use crate::args::{Against, Measuring};
use crate::baseline::{self, Baseline, Library};
use crate::commands::unless_fatal;
use crate::compare::{Contender, Title, compare};
use crate::error::BenchError;
use crate::measure::Limits;
use crate::ours::Ours;
use crate::plain::plain;
use crate::record::Record;
use crate::workload::Workload;
use std::sync::Arc;
use tilewright_device::{CacheState, Device};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

/// What generated kernels are compared with on one device.
pub struct Rivals {
    device: Arc<dyn Device>,
    libraries: Vec<Box<dyn Baseline>>,
    limits: Limits,
    cache: CacheState,
    /// Also the plain product of a case.
    plain: bool,
}

impl Rivals {
    /// Opens all libraries, so that a missing one is reported before any work is done.
    ///
    /// # Errors
    /// [`BenchError::Missing`] with how to get it; [`BenchError::Unsupported`] if the device does not speak its API;
    /// [`BenchError::Usage`] for the emulator.
    pub fn open(rivals: &Against, device: &Arc<dyn Device>, measuring: &Measuring) -> Result<Rivals, BenchError> {
        let libraries = &rivals.against;
        if libraries.contains(&Library::Clblast) && libraries.contains(&Library::ClblastTuned) {
            return Err(BenchError::Usage(
                "clblast and clblast-tuned cannot be compared in one run (CLBlast's parameters hold for the whole process): \
                 run one after the other with the same --out file"
                    .into(),
            ));
        }
        let tuned = rivals.clblast_tuned.as_deref();
        let libraries = libraries.iter().map(|l| baseline::open(*l, device.as_ref(), tuned)).collect::<Result<_, _>>()?;
        let limits = Limits { time: measuring.measure, ..Limits::default() };
        Ok(Rivals { device: device.clone(), libraries, limits, cache: measuring.cache, plain: false })
    }

    /// The same; beside a case its plain product, where it has one ([`plain`]).
    pub(crate) fn beside_plain(self, plain: bool) -> Rivals {
        Rivals { plain, ..self }
    }

    /// Runs a plan of a space and every library on the same random data. Results are checked first, then all sides are timed alternately. The
    /// record holds the reason of a side that cannot run.
    ///
    /// # Errors
    /// Only those that end the run: a lost device, memory that does not suffice.
    pub fn measure_plan(&self, title: &Title, space: &Space, plan: &Plan) -> Result<Record, BenchError> {
        self.measure(title, space.problem(), &mut |workload| Ours::with_plan(workload, space, plan))
    }

    /// As [`Rivals::measure_plan`], with our side made by `ours`.
    pub(crate) fn measure(
        &self,
        title: &Title,
        problem: &Problem,
        ours: &mut dyn FnMut(&Workload<'_>) -> Result<Ours, BenchError>,
    ) -> Result<Record, BenchError> {
        let workload = Workload::new(&self.device, problem, self.cache)?;
        let mine = unless_fatal(ours(&workload))?;
        let beside = self.plain.then(|| plain(problem)).flatten();
        let beside = beside.map(|problem| Workload::new(&self.device, &problem, self.cache)).transpose()?;
        let mine_beside = beside.as_ref().map(|workload| unless_fatal(ours(workload))).transpose()?;
        let mut contenders = vec![Contender::ours(&workload, mine.as_ref(), "tilewright")];
        if let (Some(workload), Some(mine)) = (&beside, &mine_beside) {
            contenders.push(Contender::ours(workload, mine.as_ref(), "tilewright").of_plain());
        }
        for library in self.libraries() {
            let contender = Contender::library(&workload, library)?;
            contenders.push(match &beside {
                Some(workload) if contender.unsupported => Contender::library(workload, library)?.of_plain(),
                _ => contender,
            });
        }
        compare(title, contenders, &self.limits)
    }

    /// The libraries, opened.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &dyn Baseline> {
        self.libraries.iter().map(AsRef::as_ref)
    }
}
