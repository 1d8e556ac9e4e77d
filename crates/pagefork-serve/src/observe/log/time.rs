use std::time::{SystemTime, UNIX_EPOCH};

/// A moment with its milliseconds, in UTC.
pub(crate) fn precise(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}Z", Date::new(since.as_secs()).iso(), since.subsec_millis())
}

/// The time as text, which changes once a second.
#[derive(Default)]
pub(crate) struct Clock {
    second: u64,
    text: String,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Clock {
    pub(crate) fn common(&mut self, now: SystemTime) -> &str {
        self.text(now, |date| {
            let month = MONTHS[date.month as usize - 1];
            let Date { year, day, hour, minute, second, .. } = date;
            format!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
        })
    }

    pub(crate) fn iso(&mut self, now: SystemTime) -> &str {
        self.text(now, |date| format!("{}Z", date.iso()))
    }

    fn text(&mut self, now: SystemTime, format: impl FnOnce(Date) -> String) -> &str {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = format(Date::new(second));
        }
        &self.text
    }
}

/// A moment as a field of HTTP has it.
pub(crate) fn http(now: SystemTime) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let weekday = WEEKDAYS[(seconds / 86_400 % 7) as usize];
    let date = Date::new(seconds);
    let month = MONTHS[date.month as usize - 1];
    let Date { year, day, hour, minute, second, .. } = date;
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

#[derive(Debug, PartialEq, Eq)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    fn iso(&self) -> String {
        let Date { year, month, day, hour, minute, second } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }

    /// The date of a second since 1970, in the Gregorian calendar.
    fn new(seconds: u64) -> Date {
        const DAYS_OF_400_YEARS: u64 = 146_097;
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        let leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let mut year = 1970 + days / DAYS_OF_400_YEARS * 400;
        let mut day = days % DAYS_OF_400_YEARS;
        while day >= 365 + u64::from(leap(year)) {
            day -= 365 + u64::from(leap(year));
            year += 1;
        }
        let february = 28 + u64::from(leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Date { year, month, day: day + 1, hour, minute, second }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Clock::default().iso(time), text);
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
