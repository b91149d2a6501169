//! The log query: what it asks for, and what of it is refused with which words (upstream
//! `pkg/kubelet/kubelet_server_journal.go`). Pure.

use crate::logs::stamp::Stamp;
use crate::routes;
use bulkhead_types::go_aggregate;

const TAIL_LINES_MAX: i64 = 100_000;
const SERVICE_MAX: usize = 256;
const SERVICES_MAX: usize = 4;
/// An expression has to fit into one message to whoever runs journalctl.
const PATTERN_MAX: usize = 4096;

/// A query, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    pub services: Vec<String>,
    pub files: Vec<String>,
    pub options: Options,
}

/// What a journal can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Seconds since 1970.
    pub since: Option<i64>,
    /// The same; as written, for the error.
    pub until: Option<(i64, String)>,
    pub tail_lines: Option<i64>,
    /// 0: this boot, -1: the one before.
    pub boot: Option<i64>,
    pub pattern: String,
}

/// Why it is refused, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(Vec<String>);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&go_aggregate(&self.0).unwrap_or_default())
    }
}

/// `query: Invalid value: <value as JSON>: <detail>`.
pub fn invalid(field: &str, value: &serde_json::Value, detail: &str) -> String {
    format!("{field}: Invalid value: {value}: {detail}")
}

impl Query {
    /// Reads the query of a request; `None` when nothing of it asks for logs.
    ///
    /// # Errors
    /// What cannot be read (400).
    pub fn parse(query: &str) -> Result<Option<Query>, Refused> {
        let mut errors = Vec::new();
        let mut parsed = Query::default();
        let pairs: Vec<(String, String)> = routes::pairs(query).collect();
        // The first of each counts; none and an empty one are the same.
        let first = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
            found.filter(|value| !value.is_empty())
        };
        let asked: Vec<&str> =
            pairs.iter().filter(|(key, _)| key == "query").map(|(_, value)| value.as_str()).collect();
        for one in &asked {
            // Upstream tells a file by its slash.
            if one.contains(['/', '\\']) {
                parsed.files.push((*one).to_owned());
            } else if !one.trim().is_empty() {
                parsed.services.push((*one).to_owned());
            }
        }
        if !asked.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
            errors.push(invalid("query", &asked.clone().into(), "query cannot be empty"));
        }
        let mut time = |name: &str| {
            let text = first(name)?;
            match Stamp::parse(text.as_bytes()) {
                Some(stamp) => Some((stamp.moment().0, text.to_owned())),
                None => {
                    errors.push(invalid(name, &text.into(), "invalid time format"));
                    None
                }
            }
        };
        parsed.options.since = time("sinceTime").map(|(seconds, _)| seconds);
        parsed.options.until = time("untilTime");
        let mut number = |name: &str| {
            let text = first(name)?;
            match atoi(text) {
                Ok(number) => Some(number),
                Err(why) => {
                    errors.push(invalid(name, &text.into(), &why));
                    None
                }
            }
        };
        parsed.options.boot = number("boot");
        parsed.options.tail_lines = number("tailLines");
        parsed.options.pattern = first("pattern").unwrap_or_default().to_owned();
        if !errors.is_empty() {
            return Err(Refused(errors));
        }
        Ok((parsed != Query::default()).then_some(parsed))
    }

    /// Looks whether it may be asked; whether the file exists is looked at by whoever opens it.
    ///
    /// # Errors
    /// What may not (406).
    pub fn validate(&self) -> Result<(), Refused> {
        let mut errors: Vec<String> = Vec::new();
        for service in &self.services {
            if let Some(why) = unsafe_name(service) {
                errors.push(invalid("query", &service.as_str().into(), &why));
            }
        }
        let (files, services) = (self.files.len(), self.services.len());
        if services > SERVICES_MAX {
            errors.push(format!("query: Too many: {services}: must have at most {SERVICES_MAX} items"));
        }
        match (files, services) {
            (0, 0) => errors.push("query: Required value: cannot be empty with options".to_owned()),
            (1.., 1..) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(invalid("query", &both.into(), "cannot specify a file and service"));
            }
            (2.., 0) => {
                errors.push(invalid("query", &self.files.clone().into(), "cannot specify more than one file"));
            }
            (1, 0) if self.options != Options::default() => {
                errors.push(invalid("query", &self.files.clone().into(), "cannot specify file with options"));
            }
            _ => {}
        }
        let options = &self.options;
        if let (Some(since), Some((until, written))) = (options.since, &options.until)
            && since > *until
        {
            errors.push(invalid("untilTime", &written.as_str().into(), "must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            errors.push(invalid("boot", &boot.into(), "must be less than 1"));
        }
        if let Some(lines) = options.tail_lines.filter(|lines| !(0..=TAIL_LINES_MAX).contains(lines)) {
            let detail = format!("must be between 0 and {TAIL_LINES_MAX}, inclusive");
            errors.push(invalid("tailLines", &lines.into(), &detail));
        }
        if let Some(why) = bad_pattern(&options.pattern) {
            errors.push(invalid("pattern", &options.pattern.as_str().into(), &why));
        }
        if errors.is_empty() { Ok(()) } else { Err(Refused(errors)) }
    }
}

/// What is no name of a service: these characters and no others reach journalctl's arguments.
fn unsafe_name(service: &str) -> Option<String> {
    if service.len() > SERVICE_MAX {
        return Some(format!("length must be less than {SERVICE_MAX}"));
    }
    let safe = service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@_.:-".contains(&byte));
    (!safe).then(|| "input contains unsupported characters".to_owned())
}

fn bad_pattern(pattern: &str) -> Option<String> {
    if pattern.len() > PATTERN_MAX {
        return Some(format!("must be no more than {PATTERN_MAX} bytes"));
    }
    if pattern.contains('\0') {
        return Some("must not contain NUL".to_owned());
    }
    super::pattern::problem(pattern)
}

/// Go's `strconv.Atoi`, errors included.
fn atoi(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let why = if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        "invalid syntax"
    } else {
        match text.parse() {
            Ok(number) => return Ok(number),
            Err(_) => "value out of range",
        }
    };
    Err(format!("strconv.Atoi: parsing {text:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(query: &str) -> Result<Option<Query>, (u16, String)> {
        let parsed = Query::parse(query).map_err(|refused| (400, refused.to_string()))?;
        if let Some(parsed) = &parsed {
            parsed.validate().map_err(|refused| (406, refused.to_string()))?;
        }
        Ok(parsed)
    }

    #[test]
    fn what_is_refused_and_how() {
        let long = format!("query={}", "s".repeat(257));
        let (quote, tick) = ('"', '`');
        let until = "2023-01-04T02:00:00Z";
        for (query, status, words) in [
            ("query=", 400, "query: Invalid value: [\"\"]: query cannot be empty"),
            ("query=%20&query=++", 400, "query: Invalid value: [\" \",\"  \"]: query cannot be empty"),
            (
                "sinceTime=2019-12-04%2002:00:00",
                400,
                "sinceTime: Invalid value: \"2019-12-04 02:00:00\": invalid time format",
            ),
            ("untilTime=x", 400, "untilTime: Invalid value: \"x\": invalid time format"),
            ("boot=foo", 400, "boot: Invalid value: \"foo\": strconv.Atoi: parsing \"foo\": invalid syntax"),
            ("tailLines=%20", 400, "tailLines: Invalid value: \" \": strconv.Atoi: parsing \" \": invalid syntax"),
            (
                "tailLines=99999999999999999999",
                400,
                "tailLines: Invalid value: \"99999999999999999999\": strconv.Atoi: parsing \"99999999999999999999\": value out of range",
            ),
            (
                "boot=x&tailLines=y",
                400,
                "[boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax, tailLines: Invalid value: \"y\": \
                 strconv.Atoi: parsing \"y\": invalid syntax]",
            ),
            ("tailLines=5", 406, "query: Required value: cannot be empty with options"),
            ("query=foo&query=/bar", 406, "query: Invalid value: \"[/bar], [foo]\": cannot specify a file and service"),
            ("query=/a&query=/b", 406, "query: Invalid value: [\"/a\",\"/b\"]: cannot specify more than one file"),
            ("query=/a&pattern=x", 406, "query: Invalid value: [\"/a\"]: cannot specify file with options"),
            ("query=svc%0A", 406, "query: Invalid value: \"svc\\n\": input contains unsupported characters"),
            ("query=a%20b", 406, "query: Invalid value: \"a b\": input contains unsupported characters"),
            ("query=--file=x", 406, "query: Invalid value: \"--file=x\": input contains unsupported characters"),
            ("query=a&query=b&query=c&query=d&query=e", 406, "query: Too many: 5: must have at most 4 items"),
            ("query=a&boot=1", 406, "boot: Invalid value: 1: must be less than 1"),
            ("query=a&tailLines=-1", 406, "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"),
            (
                "query=a&tailLines=100001",
                406,
                "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
            ),
        ] {
            assert_eq!(verdict(query), Err((status, words.to_owned())), "{query}");
        }
        assert!(verdict(&long).unwrap_err().1.ends_with(": length must be less than 256"));
        let late = format!("query=a&sinceTime=2023-02-04T02:00:00Z&untilTime={until}");
        let expected = format!("untilTime: Invalid value: {quote}{until}{quote}: must be after {tick}sinceTime{tick}");
        assert_eq!(verdict(&late), Err((406, expected)));
        let (status, words) = verdict("query=a&pattern=foo%5C").unwrap_err();
        assert!(status == 406 && words.contains("error parsing regexp"), "{words}");
        let plain = verdict("query=a&pattern=%7B%22level%22:%22error%22").unwrap().unwrap();
        assert_eq!(plain.options.pattern, "{\"level\":\"error\"");
        assert_eq!(verdict("query=a&pattern=x%00").unwrap_err().0, 406);
        assert_eq!(verdict(&format!("query=a&pattern={}", "x".repeat(5000))).unwrap_err().0, 406);
    }

    #[test]
    fn what_is_asked() {
        for nothing in ["", "unknown=true", "sinceTime=&tailLines=", "pattern=", "output=json"] {
            assert_eq!(verdict(nothing), Ok(None), "{nothing}");
        }
        let file = verdict("query=/foo.log").unwrap().unwrap();
        assert_eq!((file.files, file.services.len()), (vec!["/foo.log".to_owned()], 0));
        let query = "query=kubelet&query=crio%40x&sinceTime=2023-01-04T03:00:00%2B01:00&untilTime=2023-01-05T00:00:00Z\
                     &tailLines=100000&boot=-23&pattern=(?i)fail%7Cerror";
        let asked = verdict(query).unwrap().unwrap();
        assert_eq!(asked.services, ["kubelet", "crio@x"]);
        assert_eq!(
            asked.options,
            Options {
                since: Some(1_672_797_600),
                until: Some((1_672_876_800, "2023-01-05T00:00:00Z".into())),
                tail_lines: Some(100_000),
                boot: Some(-23),
                pattern: "(?i)fail|error".into(),
            }
        );
    }

    proptest! {
        #[test]
        fn only_plain_names_are_asked_of_journalctl(query in "\\PC{0,60}") {
            if let Ok(Some(query)) = verdict(&format!("query={query}")) {
                for service in query.services {
                    prop_assert!(!service.contains(['/', ' ', '=', '*', '\\']));
                }
            }
        }
    }
}
