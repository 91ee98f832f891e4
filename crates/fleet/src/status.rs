//! What a run has come to, for people, programs and pages. Texts of others are shown without control characters.

use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Tasks of one class of device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassStatus {
    /// The run's name.
    pub run: String,
    /// The class.
    pub class: String,
    /// Tasks that nobody holds.
    pub open: i64,
    /// Tasks that are worked on.
    pub leased: i64,
    /// Tasks that are tuned.
    pub done: i64,
    /// Tasks that were given up.
    pub failed: i64,
    /// Tasks that were withdrawn.
    pub withdrawn: i64,
    /// Trials of the last minute.
    pub trials_per_minute: i64,
    /// Seconds for which the oldest lease has been held.
    pub oldest_lease: Option<f64>,
    /// Seconds until all is done, by the pace so far.
    pub seconds_left: Option<f64>,
    /// How much faster the best plans are than the first trials of their tasks: the mean ratio.
    pub gain: Option<f64>,
}

/// Who works on which task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// The host.
    pub host: String,
    /// The GPU.
    pub gpu: String,
    /// The problem; empty while the worker waits.
    pub problem: String,
    /// Seconds since it was seen.
    pub seen: f64,
}

/// A task that was given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailedStatus {
    /// The run's name.
    pub run: String,
    /// The class.
    pub class: String,
    /// The problem.
    pub problem: String,
    /// Why the last attempt failed.
    pub reason: String,
}

/// A run, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Per run and class.
    pub classes: Vec<ClassStatus>,
    /// Workers that have not left.
    pub workers: Vec<WorkerStatus>,
    /// Tasks that were given up, the heaviest first. A class counts all of its own, also where this list ends before.
    pub failed: Vec<FailedStatus>,
}

/// A text without control characters (which could drive a terminal), at most so long.
pub fn printable(text: &str, most: usize) -> String {
    let hidden =
        |c: char| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| !hidden(*c)).take(most).collect()
}

fn escaped(text: &str) -> String {
    let text = printable(text, 300);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

fn seconds(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(s) if s < 120.0 => format!("{s:.0} s"),
        Some(s) if s < 7200.0 => format!("{:.0} min", s / 60.0),
        Some(s) => format!("{:.1} h", s / 3600.0),
    }
}

impl Status {
    /// Lines for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if self.classes.is_empty() {
            out.push_str("no tasks\n");
        }
        for c in &self.classes {
            let gain = c.gain.map_or(String::new(), |gain| format!(", gain {gain:.2}x"));
            let _ = writeln!(out, "run {} on {}", printable(&c.run, 100), printable(&c.class, 200));
            let _ = writeln!(
                out,
                "  {} open, {} leased, {} done, {} failed, {} withdrawn; {} trials a minute, oldest lease {}, {} left{gain}",
                c.open,
                c.leased,
                c.done,
                c.failed,
                c.withdrawn,
                c.trials_per_minute,
                seconds(c.oldest_lease),
                seconds(c.seconds_left)
            );
        }
        for w in &self.workers {
            let task = if w.problem.is_empty() { "waits".to_string() } else { printable(&w.problem, 120) };
            let (host, gpu) = (printable(&w.host, 60), printable(&w.gpu, 60));
            let _ = writeln!(out, "  {host} {gpu}: {task} (seen {} ago)", seconds(Some(w.seen)));
        }
        for f in &self.failed {
            let (run, problem) = (printable(&f.run, 100), printable(&f.problem, 120));
            let _ = writeln!(out, "  failed in run {run}: {problem}: {}", printable(&f.reason, 300));
        }
        out
    }

    /// A page, which a browser loads again after this time.
    pub fn html(&self, again: Option<Duration>) -> String {
        let head = "<!doctype html><meta charset=\"utf-8\"><title>tilewright fleet</title>\
            <style>body{font-family:sans-serif}td,th{padding:.2em .6em;text-align:left}</style>";
        let again = again.map_or(String::new(), |time| format!("<meta http-equiv=\"refresh\" content=\"{}\">", time.as_secs()));
        let mut out = format!(
            "{head}{again}<h1>Runs</h1><table><tr><th>run<th>class<th>open<th>leased<th>done<th>failed<th>withdrawn<th>trials a minute<th>oldest lease<th>left<th>gain</tr>"
        );
        for c in &self.classes {
            let gain = c.gain.map_or("-".into(), |gain| format!("{gain:.2}"));
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{gain}</tr>",
                escaped(&c.run),
                escaped(&c.class),
                c.open,
                c.leased,
                c.done,
                c.failed,
                c.withdrawn,
                c.trials_per_minute,
                seconds(c.oldest_lease),
                seconds(c.seconds_left)
            );
        }
        out.push_str("</table><h1>Workers</h1><table><tr><th>host<th>GPU<th>problem<th>seen</tr>");
        for w in &self.workers {
            let cells = [&w.host, &w.gpu, &w.problem].map(|text| escaped(text));
            let _ = write!(out, "<tr><td>{}<td>{}</tr>", cells.join("<td>"), seconds(Some(w.seen)));
        }
        out.push_str("</table>");
        if !self.failed.is_empty() {
            out.push_str("<h1>Failed</h1><table><tr><th>run<th>class<th>problem<th>reason</tr>");
        }
        for f in &self.failed {
            let cells = [&f.run, &f.class, &f.problem, &f.reason].map(|text| escaped(text));
            let _ = write!(out, "<tr><td>{}</tr>", cells.join("<td>"));
        }
        out.push_str(if self.failed.is_empty() { "\n" } else { "</table>\n" });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_state_in_its_column() {
        let class = ClassStatus { open: 1, leased: 2, done: 3, failed: 4, withdrawn: 5, ..ClassStatus::default() };
        let page = Status { classes: vec![class], ..Status::default() }.html(None);
        assert!(page.contains("<th>open<th>leased<th>done<th>failed<th>withdrawn<th>"), "{page}");
        assert!(page.contains("<td>1<td>2<td>3<td>4<td>5<td>0<td>"), "{page}");
    }

    #[test]
    fn texts_of_others_drive_neither_terminals_nor_browsers() {
        let hostile = "\u{1b}]0;x\u{7}<script>alert('1')</script>\u{202e}\u{9b}2J".to_string();
        let class = ClassStatus { run: hostile.clone(), class: hostile.clone(), ..ClassStatus::default() };
        let worker = WorkerStatus { host: hostile.clone(), gpu: hostile.clone(), problem: hostile.clone(), seen: 1.0 };
        let failed = FailedStatus { run: hostile.clone(), class: hostile.clone(), problem: hostile.clone(), reason: hostile };
        let status = Status { classes: vec![class], workers: vec![worker], failed: vec![failed] };
        assert!(!status.text().chars().any(|c| c.is_control() && c != '\n'), "{:?}", status.text());
        let page = status.html(None);
        assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}') && !page.contains("refresh"));
        // Two texts of the class, three of the worker, four of the failed task.
        assert_eq!(page.matches("&lt;script&gt;").count(), 9, "{page}");
        assert!(status.text().contains("  failed in run ]0;x<script>"), "{}", status.text());
        assert!(status.html(Some(Duration::from_secs(5))).contains("http-equiv=\"refresh\" content=\"5\""));
    }
}
