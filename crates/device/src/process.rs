//! The process that runs vendors' code: how it ends, and the diagnostics that remain if that code crashes it.

use std::fs::File;

/// What [`note_crashes`] writes.
pub const CRASHED: &[u8] = b"crashed\n";

/// Ends the process at once with this exit code. Unlike [`std::process::exit`] it runs no destructors of libraries. They crash or
/// wait for ever while other threads are still inside those libraries, as a compiler that was given up is.
pub fn exit_now(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    #[cfg(unix)]
    signal_hook::low_level::exit(code);
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Lets a crash of this process (a wild access, an illegal instruction, an abort) write [`CRASHED`] to a file. Then the process
/// ends as it would have. A kill from outside writes nothing. For the main functions of programs: it stays to their end.
///
/// # Errors
/// The operating system's.
pub fn note_crashes(file: File) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGABRT, SIGBUS, SIGILL, SIGSEGV};
        let file = std::sync::Arc::new(file);
        for signal in [SIGSEGV, SIGBUS, SIGILL, SIGABRT] {
            let file = file.clone();
            let note = move || {
                let _ = std::io::Write::write(&mut &*file, CRASHED);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            };
            // SAFETY: it writes to an open file and ends the process, both of which a signal handler may.
            unsafe { signal_hook_registry::register_signal_unchecked(signal, note) }?;
        }
    }
    #[cfg(not(unix))]
    drop(file);
    Ok(())
}
