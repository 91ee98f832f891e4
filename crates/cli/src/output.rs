//! Printing: lines on stdout that survive a closed pipe, and numbers for people.

pub use tilewright::explain::units::{human_bytes, human_rate, human_time};

use crate::error::CliError;
use std::io::Write;
use std::path::Path;

/// Prints a line on stdout. A reader that has gone away (`| head`) ends the program quietly.
pub fn line(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    // One write: other workers of this host may write to the same pipe between two.
    match out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => tilewright_device::exit_now(0),
        other => other.map_err(|e| CliError::failed(format!("stdout: {e}"))),
    }
}

/// Stdout as a [`Write`]: a reader that has gone away ends the program quietly.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        match std::io::stdout().lock().write(data) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => tilewright_device::exit_now(0),
            other => other,
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        match std::io::stdout().lock().flush() {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => tilewright_device::exit_now(0),
            other => other,
        }
    }
}

/// Characters of an error that are printed.
pub const MOST: usize = 2000;

/// An error as one line of bearable length: compilers' logs and pasted files are cut.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines.join("; ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} ... ({} more bytes; -v prints all)", &line[..end], line.len() - end),
        None => line,
    }
}

/// Why a file cannot be written, and what to do.
pub fn unwritable(path: &Path, why: &std::io::Error) -> String {
    format!("{}: cannot be written: {why}; name another file, in a folder that may be written", path.display())
}

fn make_folder_of(path: &Path) -> std::io::Result<()> {
    path.parent().filter(|p| !p.as_os_str().is_empty()).map_or(Ok(()), std::fs::create_dir_all)
}

/// Writes a file, with its folder where there is none.
pub fn write_file(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<(), CliError> {
    let written = make_folder_of(path).and_then(|()| std::fs::write(path, content));
    written.map_err(|e| CliError::failed(unwritable(path, &e)))
}

/// Sees that a file can be written, before the work that makes its content. Makes its folder where there is none, and leaves an
/// existing file as it is.
///
/// # Errors
/// The path, what is wrong and what to do.
pub fn writable(path: &Path) -> Result<(), String> {
    let tried = || {
        make_folder_of(path)?;
        let is_new = !path.exists();
        std::fs::File::options().append(true).create(true).open(path)?;
        if is_new { std::fs::remove_file(path) } else { Ok(()) }
    };
    tried().map_err(|e| unwritable(path, &e))
}

/// Text as the name of a file: letters, digits, `_`, `-` and `.` stay. A name that is too long is cut and ends in a number made
/// from the whole text, so that different texts keep different names.
pub fn file_name(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '-' }).collect();
    if clean.len() <= 180 {
        return clean;
    }
    // FNV-1a, the same on every machine.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{}-{hash:016x}", &clean[..160])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_safe_and_distinct() {
        assert_eq!(file_name("tC0_m5-emu:gfx942/.."), "tC0_m5-emu-gfx942-..");
        let long = "x".repeat(300);
        assert!(file_name(&long).len() < 200);
        assert_ne!(file_name(&long), file_name(&(long.clone() + "y")));
    }

    #[test]
    fn errors_are_one_line_of_bearable_length() {
        assert_eq!(one_line("no clang\n  install it\n\n"), "no clang; install it");
        let long = one_line(&"\u{e9}".repeat(5_000_000));
        assert!(long.len() < 2 * MOST + 60 && long.contains("9996000 more bytes"), "{}", long.len());
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(human_bytes(65536), "64 KiB");
        assert_eq!(human_bytes(1500), "1.5 KiB");
        assert_eq!(human_bytes(12), "12 bytes");
        assert_eq!(human_time(1234.0), "1.23 ms");
        assert_eq!(human_time(0.0123), "0.012 us");
        assert_eq!(human_rate(2.0 * 1024f64.powi(3), 42.0), "51.1 TFLOP/s");
    }
}
