//! Numbers with units, as people read them.

/// Bytes with a binary unit: `64 KiB`, `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = if value.fract() == 0.0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{text} {}", units[unit])
}

/// A time in microseconds: `12.3 us`, `1.21 ms`, `2.5 s`.
pub fn human_time(us: f64) -> String {
    match us {
        t if t < 1.0 => format!("{t:.3} us"),
        t if t < 1e3 => format!("{t:.1} us"),
        t if t < 1e6 => format!("{:.2} ms", t / 1e3),
        t => format!("{:.2} s", t / 1e6),
    }
}

/// A rate of floating-point operations: `812 GFLOP/s`, `51.2 TFLOP/s`.
pub fn human_rate(flop: f64, us: f64) -> String {
    let gflops = flop / us / 1e3;
    if gflops >= 1000.0 { format!("{:.1} TFLOP/s", gflops / 1e3) } else { format!("{gflops:.1} GFLOP/s") }
}
