//! From a question to the arguments of journalctl (upstream `pkg/kubelet/kubelet_server_journal_linux.go`). Pure. Whatever
//! is asked becomes the value of one option behind an equals sign; nothing of it can be an option of its own.

use bulkhead_ipc::common::JournalQuery;

/// Four that are asked for, and the four daemons where one of them is `kubelet`.
const UNITS_MAX: usize = 8;
const UNIT_MAX: usize = 256;
const LINES_MAX: u32 = 100_000;
const PATTERN_MAX: usize = 4096;

/// Why a question is not asked of journalctl. Its asker checks the same: one of these is a mistake, or worse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuery {
    #[error("it names {0} units, one to {UNITS_MAX} are asked for")]
    Units(usize),
    #[error("{0:?} cannot be a unit's name")]
    Unit(String),
    #[error("{0} lines, {LINES_MAX} at most")]
    Lines(u32),
    #[error("boot {0} is not over yet")]
    Boot(i32),
    #[error("the expression has NUL in it, or more than {PATTERN_MAX} bytes")]
    Pattern,
}

/// The arguments.
pub fn arguments(query: &JournalQuery) -> Result<Vec<String>, InvalidQuery> {
    if query.list_units {
        return Ok(vec!["--field=_SYSTEMD_UNIT".to_owned()]);
    }
    let mut arguments: Vec<String> = ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
    // In seconds, because journalctl takes a date for one of the machine's own time zone.
    arguments.extend(query.since.map(|since| format!("--since=@{since}")));
    arguments.extend(query.until.map(|until| format!("--until=@{until}")));
    if let Some(lines) = query.lines {
        if lines > LINES_MAX {
            return Err(InvalidQuery::Lines(lines));
        }
        arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
    }
    if !(1..=UNITS_MAX).contains(&query.units.len()) {
        return Err(InvalidQuery::Units(query.units.len()));
    }
    for unit in &query.units {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@_.:-".contains(&byte);
        if unit.is_empty() || unit.len() > UNIT_MAX || !unit.bytes().all(plain) {
            return Err(InvalidQuery::Unit(unit.clone()));
        }
        arguments.push(format!("--unit={unit}"));
    }
    if query.pattern.len() > PATTERN_MAX || query.pattern.contains('\0') {
        return Err(InvalidQuery::Pattern);
    }
    if !query.pattern.is_empty() {
        arguments.extend([format!("--grep={}", query.pattern), "--case-sensitive=false".to_owned()]);
    }
    if let Some(boot) = query.boot {
        if boot > 0 {
            return Err(InvalidQuery::Boot(boot));
        }
        arguments.push(format!("--boot={boot}"));
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(units: &[&str]) -> JournalQuery {
        JournalQuery { units: units.iter().map(|unit| (*unit).to_owned()).collect(), ..JournalQuery::default() }
    }

    #[test]
    fn upstreams_arguments() {
        assert_eq!(
            arguments(&query(&["p1", "p2"])).unwrap(),
            ["--utc", "--no-pager", "--output=short-precise", "--unit=p1", "--unit=p2"]
        );
        let full = JournalQuery {
            since: Some(5),
            until: Some(9),
            lines: Some(7),
            boot: Some(-1),
            pattern: "--file=/etc/shadow".into(),
            ..query(&["--directory"])
        };
        assert_eq!(
            arguments(&full).unwrap()[3..],
            [
                "--since=@5",
                "--until=@9",
                "--pager-end",
                "--lines=7",
                "--unit=--directory",
                "--grep=--file=/etc/shadow",
                "--case-sensitive=false",
                "--boot=-1"
            ]
        );
        let list = JournalQuery { list_units: true, ..full };
        assert_eq!(arguments(&list).unwrap(), ["--field=_SYSTEMD_UNIT"]);
    }

    #[test]
    fn what_is_not_asked() {
        let with = |change: fn(&mut JournalQuery)| {
            let mut asked = query(&["u"]);
            change(&mut asked);
            arguments(&asked).unwrap_err()
        };
        assert_eq!(arguments(&query(&[])), Err(InvalidQuery::Units(0)));
        assert_eq!(with(|q| q.units = vec!["u".into(); 9]), InvalidQuery::Units(9));
        for bad in ["", "a b", "a/b", "u\n", "é"] {
            assert_eq!(arguments(&query(&[bad])), Err(InvalidQuery::Unit(bad.to_owned())), "{bad:?}");
        }
        assert!(matches!(with(|q| q.units = vec!["u".repeat(257)]), InvalidQuery::Unit(_)));
        assert_eq!(with(|q| q.lines = Some(100_001)), InvalidQuery::Lines(100_001));
        assert_eq!(with(|q| q.boot = Some(1)), InvalidQuery::Boot(1));
        assert_eq!(with(|q| q.pattern = "a\0".into()), InvalidQuery::Pattern);
        assert_eq!(with(|q| q.pattern = "a".repeat(4097)), InvalidQuery::Pattern);
    }
}
