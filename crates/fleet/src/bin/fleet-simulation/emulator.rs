//! Real searches on the emulator, by one worker on a core and by several on a core each. The emulator computes all the time, so a worker
//! that waits for anything but its core shows in the wall time.

use super::Options;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use tilewright_fleet::cores;

/// A run, measured.
struct Measured {
    wall_s: f64,
    cpu_s: f64,
}

/// Seconds of processor time of this process's children that have ended.
fn of_children() -> Result<f64, String> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|e| format!("/proc/self/stat: {e}"))?;
    // Fields from the third on follow the name, which may hold blanks. The clock of /proc ticks 100 times a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13);
    Ok(fields.take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// Tunes the cases with so many workers, in a folder of its own.
fn tune(program: &str, folder: &Path, workers: usize, options: &Options) -> Result<Measured, String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let count = options.number("tasks", 24.0) as u64;
    let case = |n: u64| format!("{},{},{},f32\n", 64 + 8 * (n % 5), 64 + 8 * (n / 5 % 5), 32 + 16 * (n / 25));
    let cases: String = std::iter::once("m,n,k,dtype\n".to_string()).chain((0..count).map(case)).collect();
    std::fs::write(folder.join("cases.csv"), cases).map_err(|e| format!("{}: {e}", folder.display()))?;
    let allowed = cores(1).and_then(|all| all.into_iter().next()).unwrap_or_default();
    if allowed.len() < workers {
        return Err(format!("{workers} workers need a core each; this process has {}", allowed.len()));
    }
    let list: Vec<String> = allowed[..workers].iter().map(u32::to_string).collect();
    let mut command = Command::new("taskset");
    command.args(["-c", &list.join(","), program, "tune", "--cases", "cases.csv", "--quiet", "--records", "records.sqlite"]);
    command.args(["--device", &vec!["emu"; workers].join(","), "--budget", &options.text("trials", "6")]);
    // A run with a name, so that one worker is a child of a parent, too. With TILEWRIGHT_FLEET it is on that server.
    let part = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    command.args(["--run", &format!("{}-{}-{part}", options.text("run", "emulator"), std::process::id())]);
    let before = of_children()?;
    let start = Instant::now();
    let status = command.current_dir(folder).stdout(Stdio::null()).status().map_err(|e| format!("taskset: {e}"))?;
    let measured = Measured { wall_s: start.elapsed().as_secs_f64(), cpu_s: of_children()? - before };
    if status.success() { Ok(measured) } else { Err(format!("tune ended with {status}")) }
}

/// Compares several workers with one, so many times; prints each comparison, and the one of the least wall times.
pub fn emulator(program: &str, options: &Options) -> Result<(), String> {
    let (workers, times) = (options.number("workers", 2.0) as usize, options.number("times", 3.0) as usize);
    let place = std::env::temp_dir().join(format!("fleet-simulation-{}", std::process::id()));
    let mut least = [f64::INFINITY; 2];
    let result = (0..times).try_for_each(|time| {
        let [one, several] = [1, workers].map(|count| {
            let folder = place.join(format!("{time}-{count}"));
            tune(program, &folder, count, options)
        });
        let (one, several) = (one?, several?);
        least = [least[0].min(one.wall_s), least[1].min(several.wall_s)];
        println!(
            "{{\"one_s\": {:.2}, \"one_cpu_s\": {:.2}, \"several_s\": {:.2}, \"several_cpu_s\": {:.2}, \"of_share\": {:.3}}}",
            one.wall_s,
            one.cpu_s,
            several.wall_s,
            several.cpu_s,
            several.wall_s * workers as f64 / one.wall_s
        );
        Ok(())
    });
    // What cannot be removed stays in the temporary folder.
    let _ = std::fs::remove_dir_all(&place);
    println!("{{\"workers\": {workers}, \"least_of_share\": {:.3}}}", least[1] * workers as f64 / least[0]);
    result
}
