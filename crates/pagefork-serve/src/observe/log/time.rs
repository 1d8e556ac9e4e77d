//! Dates and times as text, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second that HTTP's dates can express: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A moment with its milliseconds.
pub(crate) fn precise(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let iso = iso(&http(now));
    format!("{iso}.{:03}Z", since.subsec_millis())
}

/// A moment as a field of HTTP has it: `Mon, 28 Feb 2000 23:59:59 GMT`.
pub(crate) fn http(now: SystemTime) -> String {
    let second = second(now).min(LAST_SECOND);
    HttpDate::from(UNIX_EPOCH + Duration::from_secs(second)).to_string()
}

/// The time as text, which changes once a second.
#[derive(Default)]
pub(crate) struct Clock {
    second: u64,
    text: String,
}

impl Clock {
    /// As the Common Log Format has it: `28/Feb/2000:23:59:59 +0000`.
    pub(crate) fn common(&mut self, now: SystemTime) -> &str {
        self.text(now, |date| {
            let (day, month, year, time) =
                (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
            format!("{day}/{month}/{year}:{time} +0000")
        })
    }

    pub(crate) fn iso(&mut self, now: SystemTime) -> &str {
        self.text(now, |date| iso(date) + "Z")
    }

    fn text(&mut self, now: SystemTime, format: impl FnOnce(&str) -> String) -> &str {
        let second = second(now);
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = format(&http(now));
        }
        &self.text
    }
}

fn second(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A date of HTTP, all of whose parts have fixed places, in the order of ISO 8601.
fn iso(date: &str) -> String {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = MONTHS.find(&date[8..11]).unwrap_or_default() / 3 + 1;
    format!("{}-{month:02}-{}T{}", &date[12..16], &date[5..7], &date[17..25])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (16_725_225_599, "2499-12-31T23:59:59Z"),
            (LAST_SECOND + 10, "9999-12-31T23:59:59Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Clock::default().iso(time), text);
        }
        for (month, day) in (1..=12).zip((0..).step_by(31)) {
            let time = UNIX_EPOCH + Duration::from_secs(day * 86_400);
            assert!(Clock::default().iso(time).starts_with(&format!("1970-{month:02}-")));
        }
        let time = UNIX_EPOCH + Duration::from_secs(951_782_400);
        assert_eq!(Clock::default().common(time), "29/Feb/2000:00:00:00 +0000");
    }

    #[test]
    fn moments_have_milliseconds() {
        let time = UNIX_EPOCH + Duration::from_millis(951_782_399_007);
        assert_eq!(precise(time), "2000-02-28T23:59:59.007Z");
        assert_eq!(http(time), "Mon, 28 Feb 2000 23:59:59 GMT");
    }
}
