//! What a child tells a parent that draws bars: lines of its standard error that begin with a control character.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// No other line begins with it.
const MARK: char = '\u{1}';

/// Something to draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum News {
    /// How far a search is.
    Search {
        /// Of the budget, in its own steps.
        position: u64,
        /// The whole budget.
        length: Option<u64>,
        /// What is found and done.
        text: String,
    },
    /// A search ended.
    Ended {
        /// How many times faster the best plan is than the first that was right; `None` where no plan was found.
        gain: Option<f64>,
    },
}

impl News {
    /// Tells the parent. One that is gone hears nothing.
    pub fn tell(&self) {
        let text = serde_json::to_string(self).unwrap_or_default();
        // One write: other processes may write between two.
        let _ = std::io::stderr().write_all(format!("{MARK}{text}\n").as_bytes());
    }

    /// Reads a line; `None` where it is for the user.
    pub fn read(line: &str) -> Option<News> {
        serde_json::from_str(line.strip_prefix(MARK)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_the_user_are_no_news() {
        let news = News::Search { position: 3, length: Some(30), text: "best 2 us\n\"a\"".into() };
        let line = format!("{MARK}{}", serde_json::to_string(&news).unwrap());
        assert!(!line.contains('\n'));
        assert_eq!(News::read(&line), Some(news));
        assert_eq!((News::read("error: {}"), News::read("\u{1}{}")), (None, None));
    }
}
