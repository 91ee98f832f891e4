//! Readers of option values, of `tilewright` and of `tilewright-bench`: sizes, bytes, budgets, shares. Each refusal names the value and what is
//! allowed.

use std::time::Duration;

/// What ends a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// After this many trials.
    Trials(u64),
    /// After this time.
    Time(Duration),
}

/// A positive whole number.
pub fn positive(text: &str) -> Result<u64, String> {
    match whole(text)? {
        0 => Err("must be at least 1".into()),
        value => Ok(value),
    }
}

/// Sizes: one, or several in equal steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(pub Vec<u64>);

/// Most sizes of a range.
const MOST_SIZES: u64 = 1000;

/// A size, or `1024:4096:1024`: from, to, step.
pub fn range(text: &str) -> Result<Range, String> {
    let parts = text.split(':').map(positive).collect::<Result<Vec<_>, _>>();
    match parts?.as_slice() {
        [one] => Ok(Range(vec![*one])),
        [from, to, step] if from <= to && (to - from) / step < MOST_SIZES => {
            Ok(Range((0..=(to - from) / step).map(|n| from + n * step).collect()))
        }
        [from, to, _] if from <= to => Err(format!("has more than {MOST_SIZES} sizes: take a larger step")),
        _ => Err("is neither a size nor a range: write 1024, or 1024:4096:1024 for from, to, step".into()),
    }
}

/// A whole number of at least 0.
pub fn whole(text: &str) -> Result<u64, String> {
    let value: i128 = text.parse().map_err(|_| "is no whole number".to_string())?;
    if value < 0 {
        return Err("must not be negative".into());
    }
    match u64::try_from(value) {
        Ok(value) if value <= i64::MAX as u64 => Ok(value),
        _ => Err("is too large: 9223372036854775807 is the most".into()),
    }
}

/// A finite number.
pub fn number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err("must be a finite number".into()),
        Err(_) => Err("is no number: write 1, -0.5 or 2e-3".into()),
    }
}

/// Bytes: a number with an optional K, M, G or T (powers of 1024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let body = text.trim_end_matches(['B', 'b']).trim_end_matches(['i']);
    let (digits, shift) = match body.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&body[..at], 10),
        Some((at, 'm' | 'M')) => (&body[..at], 20),
        Some((at, 'g' | 'G')) => (&body[..at], 30),
        Some((at, 't' | 'T')) => (&body[..at], 40),
        _ => (body, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "is no size: write bytes as 1048576, 1024K, 256M or 2G".to_string())?;
    number.checked_mul(1 << shift).filter(|&b| b <= i64::MAX as u64).ok_or_else(|| "is more memory than can be addressed".into())
}

/// A span of time: `500ms`, `30s`, `2m`.
pub fn span(text: &str) -> Result<Duration, String> {
    match budget(text) {
        Ok(Budget::Time(time)) => Ok(time),
        _ => Err("is no span of time: write 500ms, 30s or 2m".into()),
    }
}

/// A tuning budget: `200` trials, or a time as `500ms`, `30s`, `2m`, `1h`.
pub fn budget(text: &str) -> Result<Budget, String> {
    let wrong = || "is no budget: write trials as 200, or a time as 500ms, 30s, 2m or 1h".to_string();
    if let Ok(trials) = text.parse::<u64>() {
        return if trials == 0 { Err("allows no trial at all: at least 1".into()) } else { Ok(Budget::Trials(trials)) };
    }
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (digits, unit) = text.split_at(split);
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let seconds = number
        * match unit {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
    if !(seconds > 0.0 && seconds <= 1e7) {
        return Err("must be longer than 0 and shorter than 115 days".into());
    }
    Ok(Budget::Time(Duration::from_secs_f64(seconds)))
}

/// A time: 500ms, 30s, 2m, 1h.
///
/// # Errors
/// The message for the user.
pub fn time(text: &str) -> Result<Duration, String> {
    match budget(text)? {
        Budget::Time(time) => Ok(time),
        Budget::Trials(_) => Err(format!("is no time: write {text}s for seconds")),
    }
}

/// The I-th of N shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    pub index: u64,
    /// Shares.
    pub of: u64,
}

/// Most shares.
pub const MOST_PARTS: u64 = 1_000_000;

/// Reads `2/8`.
pub fn part(text: &str) -> Result<Part, String> {
    let read = || {
        let (index, of) = text.split_once('/')?;
        let (index, of) = (index.parse::<u64>().ok()?, of.parse::<u64>().ok()?);
        (1 <= index && index <= of && of <= MOST_PARTS).then(|| Part { index: index - 1, of })
    };
    read().ok_or_else(|| format!("write I/N with I from 1 to N, N at most {MOST_PARTS}: 2/8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_as_numbers_from_one_on() {
        assert_eq!(part("1/1"), Ok(Part { index: 0, of: 1 }));
        assert_eq!(part("8/8"), Ok(Part { index: 7, of: 8 }));
        for wrong in ["", "0/4", "5/4", "1", "1/", "/2", "-1/2", "1/2/3", "1/0", "a/b", "1/1000001", "1/99999999999999999999"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(positive("7"), Ok(7));
        assert!(positive("0").unwrap_err().contains("at least 1"));
        assert!(positive("-3").unwrap_err().contains("negative"));
        assert!(positive("99999999999999999999").unwrap_err().contains("too large"));
        assert!(whole("1.5").unwrap_err().contains("no whole number"));
    }

    #[test]
    fn ranges() {
        assert_eq!(range("7"), Ok(Range(vec![7])));
        assert_eq!(range("1024:4096:1024"), Ok(Range(vec![1024, 2048, 3072, 4096])));
        assert_eq!(range("1:6:2"), Ok(Range(vec![1, 3, 5])));
        for (wrong, part) in
            [("4:2:1", "from, to, step"), ("1:2", "from, to, step"), ("0:4:1", "at least 1"), ("1:9999:1", "larger step")]
        {
            assert!(range(wrong).unwrap_err().contains(part), "{wrong}");
        }
    }

    #[test]
    fn sizes_in_bytes() {
        assert_eq!(bytes("256M"), Ok(256 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("17"), Ok(17));
        assert!(bytes("lots").is_err());
        assert!(bytes("99999999999T").is_err());
    }

    #[test]
    fn budgets() {
        assert_eq!(budget("200"), Ok(Budget::Trials(200)));
        assert_eq!(budget("30s"), Ok(Budget::Time(Duration::from_secs(30))));
        assert_eq!(budget("1.5m"), Ok(Budget::Time(Duration::from_secs(90))));
        assert_eq!(budget("500ms"), Ok(Budget::Time(Duration::from_millis(500))));
        for wrong in ["0", "s", "-3s", "3parsecs", ""] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }
}
