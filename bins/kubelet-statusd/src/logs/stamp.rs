//! Times as Go reads them: RFC 3339 with any number of digits after the second, and two liberties that Go's parser takes
//! (an hour of one digit, a comma before the fraction). Go drops digits after the ninth; so do we.

/// A moment, and how it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    year: u16,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
    nanos: u32,
    /// East of UTC.
    offset_minutes: i16,
}

/// A moment as it is compared: seconds since 1970 (UTC) and nanoseconds.
pub type Moment = (i64, u32);

/// Go's zero time, which is before every other that a log holds.
const ZERO: Stamp = Stamp { year: 1, month: 1, day: 1, hour: 0, minute: 0, second: 0, nanos: 0, offset_minutes: 0 };

impl Default for Stamp {
    fn default() -> Self {
        ZERO
    }
}

impl Stamp {
    /// Reads a whole text; `None` when it is no time.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let year = number(&mut rest, 4)?;
        let month = after(&mut rest, b'-', 2)?;
        let day = after(&mut rest, b'-', 2)?;
        take(&mut rest, b'T')?;
        let one_digit = rest.get(1).is_none_or(|byte| !byte.is_ascii_digit());
        let hour = number(&mut rest, if one_digit { 1 } else { 2 })?;
        let minute = after(&mut rest, b':', 2)?;
        let second = after(&mut rest, b':', 2)?;
        let nanos = fraction(&mut rest);
        let offset_minutes = zone(&mut rest)?;
        let real = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60
            && rest.is_empty();
        let byte = |number: u16| u8::try_from(number).ok();
        real.then_some(Stamp {
            year,
            month: byte(month)?,
            day: byte(day)?,
            hour: byte(hour)?,
            minute: byte(minute)?,
            second: byte(second)?,
            nanos,
            offset_minutes,
        })
    }

    /// For comparing.
    pub fn moment(&self) -> Moment {
        let days = days_since_1970(i64::from(self.year), i64::from(self.month), i64::from(self.day));
        let minutes = (days * 24 + i64::from(self.hour)) * 60 + i64::from(self.minute) - i64::from(self.offset_minutes);
        (minutes * 60 + i64::from(self.second), self.nanos)
    }

    /// Appends it with exactly nine digits after the second, in the zone that it was written in (upstream
    /// `RFC3339NanoFixed`).
    pub fn write(&self, out: &mut Vec<u8>) {
        digits(out, u32::from(self.year), 4);
        for (mark, number) in
            [(b'-', self.month), (b'-', self.day), (b'T', self.hour), (b':', self.minute), (b':', self.second)]
        {
            out.push(mark);
            digits(out, u32::from(number), 2);
        }
        out.push(b'.');
        digits(out, self.nanos, 9);
        if self.offset_minutes == 0 {
            return out.push(b'Z');
        }
        out.push(if self.offset_minutes < 0 { b'-' } else { b'+' });
        let minutes = u32::from(self.offset_minutes.unsigned_abs());
        digits(out, minutes / 60, 2);
        out.push(b':');
        digits(out, minutes % 60, 2);
    }
}

fn take(rest: &mut &[u8], mark: u8) -> Option<()> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    (*first == mark).then_some(())
}

fn number(rest: &mut &[u8], count: usize) -> Option<u16> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    head.iter().try_fold(0_u16, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + u16::from(digit - b'0')))
}

fn after(rest: &mut &[u8], mark: u8, count: usize) -> Option<u16> {
    take(rest, mark)?;
    number(rest, count)
}

/// Nanoseconds; 0 where there is no fraction.
fn fraction(rest: &mut &[u8]) -> u32 {
    let [b'.' | b',', tail @ ..] = *rest else { return 0 };
    let count = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return 0;
    }
    let (number, after) = tail.split_at(count);
    *rest = after;
    let padded = number.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    padded.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
}

/// Minutes east of UTC. Go lets 24 hours and 60 minutes pass.
fn zone(rest: &mut &[u8]) -> Option<i16> {
    let (sign, tail) = rest.split_first()?;
    *rest = tail;
    let sign = match sign {
        b'Z' => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = number(rest, 2)?;
    let minutes = after(rest, b':', 2)?;
    let sum = i16::try_from(hours * 60 + minutes).ok()?;
    (hours <= 24 && minutes <= 60).then_some(sign * sum)
}

fn days_in(year: u16, month: u16) -> u16 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the Gregorian calendar; the year begins in March, so that a leap day is its last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn digits(out: &mut Vec<u8>, number: u32, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    let mut left = number;
    for place in out.iter_mut().skip(start).rev() {
        // A digit of ten fits.
        *place = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str) -> Option<String> {
        let mut out = Vec::new();
        Stamp::parse(text.as_bytes())?.write(&mut out);
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn as_go_reads_and_writes_them() {
        for (text, expected) in [
            ("2016-10-06T00:17:09.669794202Z", Some("2016-10-06T00:17:09.669794202Z")),
            ("2016-10-20T18:39:20.57606443Z", Some("2016-10-20T18:39:20.576064430Z")),
            ("2016-10-20T18:39:20Z", Some("2016-10-20T18:39:20.000000000Z")),
            ("2022-10-29T16:10:22.592603036-05:00", Some("2022-10-29T16:10:22.592603036-05:00")),
            ("2022-10-29T16:10:22+05:30", Some("2022-10-29T16:10:22.000000000+05:30")),
            ("2022-10-29T16:10:22.5+00:00", Some("2022-10-29T16:10:22.500000000Z")),
            ("2022-10-29T16:10:22.1234567899999Z", Some("2022-10-29T16:10:22.123456789Z")),
            ("2022-10-29T6:10:22,5Z", Some("2022-10-29T06:10:22.500000000Z")),
            ("2020-02-29T00:00:00Z", Some("2020-02-29T00:00:00.000000000Z")),
            ("2021-02-29T00:00:00Z", None),
            ("2021-13-01T00:00:00Z", None),
            ("2021-04-31T00:00:00Z", None),
            ("2021-04-30T24:00:00Z", None),
            ("2021-04-30T23:60:00Z", None),
            ("2021-04-30T23:59:60Z", None),
            ("2021-04-30 23:59:59Z", None),
            ("2021-04-30T23:59:59", None),
            ("2021-04-30T23:59:59.Z", None),
            ("2021-04-30T23:59:59Zx", None),
            ("2021-04-30T23:59:59z", None),
            ("2021-04-30T23:59:59+0100", None),
            ("2021-04-30T23:59:59+25:00", None),
            ("21-04-30T23:59:59Z", None),
            ("", None),
        ] {
            assert_eq!(written(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn moments() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00+01:00", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2001-09-09T01:46:40Z", 1_000_000_000),
            ("1969-12-31T23:59:59Z", -1),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
        ] {
            assert_eq!(Stamp::parse(text.as_bytes()).unwrap().moment(), (seconds, 0), "{text}");
        }
        let moment = |text: &str| Stamp::parse(text.as_bytes()).unwrap().moment();
        assert!(moment("2020-01-01T00:00:00.000000001Z") > moment("2020-01-01T00:00:00Z"));
        assert_eq!(Stamp::default().moment(), moment("0001-01-01T00:00:00Z"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in -60_000_000_000_i64..250_000_000_000, nanos in 0..1_000_000_000_u32) {
            let time = jiff::Timestamp::new(seconds, i32::try_from(nanos).unwrap()).unwrap();
            let stamp = Stamp::parse(time.to_string().as_bytes());
            // Seconds and nanoseconds of a time before 1970 have the same sign there.
            let expected = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            let stamp = stamp.unwrap();
            let (s, n) = stamp.moment();
            prop_assert_eq!(i128::from(s) * 1_000_000_000 + i128::from(n), expected);
            let mut out = Vec::new();
            stamp.write(&mut out);
            prop_assert_eq!(Stamp::parse(&out), Some(stamp));
        }

        #[test]
        fn nothing_panics(text in any::<Vec<u8>>(), like in "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{1,2}:[0-9]{2}:[0-9]{2}[.,0-9]{0,12}[Z+-]?[0-9:]{0,6}") {
            let _ = Stamp::parse(&text);
            if let Some(stamp) = Stamp::parse(like.as_bytes()) {
                let _ = stamp.moment();
                stamp.write(&mut Vec::new());
            }
        }
    }
}
