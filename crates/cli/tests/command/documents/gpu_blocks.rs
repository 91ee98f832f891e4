//! Shell blocks that name a GPU, a model or a vendor's library (`sh gpu`): each command runs up to the device that is not here.

use crate::documents::{bash, none, prepare, side_by_side, tail};
use crate::pages::Page;
use crate::small_model::model;
use std::path::Path;

/// Messages of a command that found everything but the device, its clock or its library.
const STOPPED: [&str; 4] =
    ["is not available", "needs a CUDA device", "needs a device `cuda:0`", "has no vendor libraries and no clock; choose cuda:0"];

/// A line as it runs here: a shorter search, an editor that changes nothing, one process in place of Slurm's.
fn here(line: &str) -> String {
    let swaps = [
        ("--budget 20s", "--budget 2"),
        ("--device all --budget 30s", "--device emu,emu --budget 2"),
        ("$EDITOR ", "true "),
        ("srun -n 8 --gpus-per-task=1 bash", "SLURM_PROCID=0 bash"),
        ("/local/", "local/"),
        ("--cases shapes.csv --records", "--cases shapes.csv --budget 2 --device emu --records"),
    ];
    swaps.iter().fold(line.to_string(), |line, (from, to)| line.replace(from, to))
}

/// Files that blocks before these have made, or that a user brings.
fn fixtures(folder: &Path) {
    prepare(folder);
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).expect("a file");
    write("model.onnx", &model());
    for name in ["shapes.csv", "cases.csv"] {
        write(name, b"set,m,n,k,dtype\nmlp,32,96,48,f32\n");
    }
    for name in ["local", "shared"] {
        std::fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    let made = bash("tilewright emit gemm --m 64 --n 64 --k 64 --dtype bf16 --arch sm_90a --out product.cu", folder).output();
    assert!(made.expect("bash").status.success(), "product.cu");
}

/// How the lines of a page ran.
#[derive(Default)]
struct Lines {
    ran: usize,
    whole: usize,
    failures: Vec<String>,
}

fn lines_of(page: &Page) -> Lines {
    let mut lines = Lines::default();
    let blocks: Vec<_> = page.blocks().into_iter().filter(|block| block.info == "sh gpu").collect();
    if blocks.is_empty() {
        return lines;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fixtures(folder.path());
    for block in blocks {
        for (n, line) in block.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            lines.ran += 1;
            let output = bash(&here(line), folder.path()).output().expect("bash");
            let err = String::from_utf8_lossy(&output.stderr);
            lines.whole += usize::from(output.status.success());
            if !output.status.success() && !STOPPED.iter().any(|message| err.contains(message)) {
                lines.failures.push(format!("{}:{}: {line}\n{}", page.name, block.line + n, tail(&err)));
            }
        }
    }
    lines
}

pub fn gpu_blocks_run_up_to_the_device() {
    let pages = side_by_side(lines_of);
    let sum = |of: fn(&Lines) -> usize| pages.iter().map(of).sum::<usize>();
    let (ran, whole) = (sum(|page| page.ran), sum(|page| page.whole));
    assert!(ran >= 12 && whole >= 6, "{whole} of {ran} lines ran");
    none(pages.into_iter().flat_map(|page| page.failures).collect());
}
