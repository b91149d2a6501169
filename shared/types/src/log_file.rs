//! Names of a container's log files: `<n>.log` is written to, `<n>.log.<stamp>` was rotated, `<n>.log.<stamp>.gz` compressed
//! after that (upstream `pkg/kubelet/logs/container_log_manager.go`).

use std::fmt;

use crate::IdError;

/// Bytes of `YYYYMMDD-HHMMSS`.
const LENGTH: usize = 15;

/// When a log was rotated, to the second, as it stands in the name: local time without a zone. Stamps are compared as text, which
/// is the order of time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogStamp([u8; LENGTH]);

impl LogStamp {
    /// Checks the text. Errors say what is allowed.
    ///
    /// # Errors
    /// It is no day and time of the calendar in this form.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bad = || IdError {
            kind: "log stamp",
            value: text.chars().take(128).collect(),
            allowed: "a day and a time as YYYYMMDD-HHMMSS",
        };
        let bytes: [u8; LENGTH] = text.as_bytes().try_into().map_err(|_| bad())?;
        let digits =
            bytes.iter().enumerate().all(|(at, byte)| if at == 8 { *byte == b'-' } else { byte.is_ascii_digit() });
        let stamp = LogStamp(bytes);
        if digits && stamp.fields().is_valid() { Ok(stamp) } else { Err(bad()) }
    }

    /// Of a year with four digits; `None` where there is no such moment.
    pub fn new(year: u16, month: u8, day: u8, hour: u8, minute: u8, second: u8) -> Option<Self> {
        let fields = Fields { year, month, day, hour, minute, second };
        fields.is_valid().then(|| fields.stamp())
    }

    /// A second later. `None` after the year 9999.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        let mut next = self.fields();
        next.second += 1;
        if next.second == 60 {
            (next.second, next.minute) = (0, next.minute + 1);
        }
        if next.minute == 60 {
            (next.minute, next.hour) = (0, next.hour + 1);
        }
        if next.hour == 24 {
            (next.hour, next.day) = (0, next.day + 1);
        }
        if next.day > next.days_of_month() {
            (next.day, next.month) = (1, next.month + 1);
        }
        if next.month > 12 {
            (next.month, next.year) = (1, next.year + 1);
        }
        next.is_valid().then(|| next.stamp())
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    fn fields(&self) -> Fields {
        let number = |from: usize, to: usize| {
            let digits = self.0.get(from..to).unwrap_or_default().iter();
            digits.fold(0_u16, |sum, digit| sum * 10 + u16::from(digit.wrapping_sub(b'0') % 10))
        };
        let two = |from: usize| number(from, from + 2) as u8;
        Fields { year: number(0, 4), month: two(4), day: two(6), hour: two(9), minute: two(11), second: two(13) }
    }
}

#[derive(Debug, Clone, Copy)]
struct Fields {
    year: u16,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Fields {
    fn is_valid(&self) -> bool {
        self.year <= 9999
            && (1..=12).contains(&self.month)
            && (1..=self.days_of_month()).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
    }

    fn days_of_month(&self) -> u8 {
        let leap = self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        match self.month {
            4 | 6 | 9 | 11 => 30,
            2 if leap => 29,
            2 => 28,
            _ => 31,
        }
    }

    fn stamp(&self) -> LogStamp {
        let Fields { year, month, day, hour, minute, second } = self;
        let text = format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}");
        let mut bytes = [0; LENGTH];
        bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        LogStamp(bytes)
    }
}

impl fmt::Display for LogStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LogStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a rotated log is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogForm {
    /// As the runtime wrote it.
    Plain,
    /// `.gz`.
    Compressed,
    /// `.tmp`: upstream was compressing it when it ended.
    Unfinished,
}

impl LogForm {
    /// What its name ends with.
    pub const fn suffix(self) -> &'static str {
        match self {
            LogForm::Plain => "",
            LogForm::Compressed => ".gz",
            LogForm::Unfinished => ".tmp",
        }
    }

    /// The form whose suffix this is.
    pub fn of_suffix(suffix: &str) -> Option<Self> {
        [LogForm::Plain, LogForm::Compressed, LogForm::Unfinished].into_iter().find(|form| form.suffix() == suffix)
    }
}

/// `<n>.log`.
pub fn current_log_name(number: u32) -> String {
    format!("{number}.log")
}

/// `<n>.log.<stamp>` with the form's suffix.
pub fn rotated_log_name(number: u32, stamp: LogStamp, form: LogForm) -> String {
    format!("{number}.log.{stamp}{}", form.suffix())
}

/// What [`rotated_log_name`] made, and nothing else.
pub fn parse_rotated_log_name(name: &str) -> Option<(u32, LogStamp, LogForm)> {
    let (number, rest) = name.split_once(".log.")?;
    let (stamp, suffix) = rest.split_at_checked(LENGTH)?;
    let form = LogForm::of_suffix(suffix)?;
    let (number, stamp) = (number.parse().ok()?, LogStamp::parse(stamp).ok()?);
    // "+1" and "01" are other files.
    (name == rotated_log_name(number, stamp, form)).then_some((number, stamp, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> LogStamp {
        LogStamp::parse(text).unwrap()
    }

    #[test]
    fn stamps_are_moments_of_the_calendar() {
        for good in ["20260101-000000", "20240229-235959", "00000101-000000", "99991231-235959", "20000229-000000"] {
            assert_eq!(stamp(good).to_string(), good);
        }
        for bad in [
            "",
            "20260101",
            "20260101-00000",
            "20260101-0000000",
            "20260101_000000",
            "2026010a-000000",
            "20260001-000000",
            "20261301-000000",
            "20260100-000000",
            "20260132-000000",
            "20260431-000000",
            "20250229-000000",
            "19000229-000000",
            "20260101-240000",
            "20260101-006000",
            "20260101-000060",
            "../../etc/passw",
            "2026010\u{e9}-00000",
        ] {
            assert!(LogStamp::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(LogStamp::new(2026, 2, 3, 4, 5, 6), Some(stamp("20260203-040506")));
        assert_eq!((LogStamp::new(2026, 2, 29, 0, 0, 0), LogStamp::new(10_000, 1, 1, 0, 0, 0)), (None, None));
    }

    #[test]
    fn a_second_later() {
        for (now, next) in [
            ("20260101-000000", "20260101-000001"),
            ("20260101-000059", "20260101-000100"),
            ("20260101-005959", "20260101-010000"),
            ("20260131-235959", "20260201-000000"),
            ("20240228-235959", "20240229-000000"),
            ("20250228-235959", "20250301-000000"),
            ("20261231-235959", "20270101-000000"),
        ] {
            assert_eq!(stamp(now).next(), Some(stamp(next)));
            assert!(stamp(now) < stamp(next), "as text, too");
        }
        assert_eq!(stamp("99991231-235959").next(), None);
    }

    #[test]
    fn names() {
        let at = stamp("20260102-030405");
        for (name, parts) in [
            ("0.log.20260102-030405", Some((0, at, LogForm::Plain))),
            ("12.log.20260102-030405.gz", Some((12, at, LogForm::Compressed))),
            ("3.log.20260102-030405.tmp", Some((3, at, LogForm::Unfinished))),
            ("0.log", None),
            ("0.log.", None),
            ("01.log.20260102-030405", None),
            ("+1.log.20260102-030405", None),
            ("0.log.20260102-030405.xz", None),
            ("0.log.20260102-030405.gz.tmp", None),
            ("0.log.20261302-030405", None),
            ("0.log.old", None),
            ("x.log.20260102-030405", None),
            ("0.log.2026010\u{20ac}-030405", None),
        ] {
            assert_eq!(parse_rotated_log_name(name), parts, "{name}");
        }
        assert_eq!(current_log_name(7), "7.log");
    }
}
