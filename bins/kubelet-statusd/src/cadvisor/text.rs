//! Writes series of cgroups as text 0.0.4. The labels that all series of a group share are written out once: a node with
//! 100 pods has 15,000 series. Pure.

use std::fmt::Write as _;

use bulkhead_ipc::evictiond::CgroupStats;

use crate::scrape::exposition::Kind;

/// A value. Writing to a String cannot fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Whole(u64),
    Signed(i64),
    Real(f64),
}

/// Labels beside those that all have, rendered ([`label`]), by where the alphabet puts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extra {
    /// cpu, device, failure_type.
    pub before_id: String,
    /// interface, major, minor.
    pub before_name: String,
    /// operation.
    pub before_pod: String,
    /// scope, state, ulimit.
    pub last: String,
}

/// `name="value"`, escaped.
pub fn label(name: &str, value: &str) -> String {
    let mut out = String::with_capacity(name.len() + value.len() + 3);
    put(&mut out, name, value);
    out
}

fn put(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The labels of a group, in the four pieces between which others may stand.
#[derive(Debug, Clone)]
pub struct Labels([String; 4]);

impl Labels {
    pub fn of(group: &CgroupStats) -> Self {
        let pieces = [
            [("container", &group.container), ("", &group.container)],
            [("id", &group.id), ("image", &group.image)],
            [("name", &group.name), ("namespace", &group.namespace)],
            [("pod", &group.pod), ("", &group.pod)],
        ];
        Labels(pieces.map(|piece| {
            let mut out = String::new();
            for (name, value) in piece.into_iter().filter(|(name, _)| !name.is_empty()) {
                if !out.is_empty() {
                    out.push(',');
                }
                put(&mut out, name, value);
            }
            out
        }))
    }

    fn write(&self, out: &mut String, extra: &Extra) {
        let between = [&extra.before_id, &extra.before_name, &extra.before_pod, &extra.last];
        for (index, (own, extra)) in self.0.iter().zip(between).enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(own);
            if !extra.is_empty() {
                out.push(',');
                out.push_str(extra);
            }
        }
    }
}

/// The text as it grows.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    name: &'static str,
    /// HELP and TYPE of a family that has no series yet.
    head: Option<(Kind, &'static str)>,
}

impl Text {
    pub fn with_room_for(bytes: usize) -> Self {
        Text { out: String::with_capacity(bytes), ..Text::default() }
    }

    /// Begins a family. It is not in the text unless a series follows.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.name = name;
        self.head = Some((kind, help));
    }

    /// A series of a group.
    pub fn of_group(&mut self, labels: &Labels, extra: &Extra, value: Number, timestamp: Option<i64>) {
        self.start();
        self.out.push('{');
        labels.write(&mut self.out, extra);
        self.out.push('}');
        self.end(value, timestamp);
    }

    /// A series with these labels, rendered and in their order.
    pub fn with_labels(&mut self, labels: &str, value: Number) {
        self.start();
        if !labels.is_empty() {
            let _ = write!(self.out, "{{{labels}}}");
        }
        self.end(value, None);
    }

    pub fn finish(self) -> String {
        self.out
    }

    fn start(&mut self) {
        let name = self.name;
        if let Some((kind, help)) = self.head.take() {
            let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        }
        self.out.push_str(name);
    }

    fn end(&mut self, value: Number, timestamp: Option<i64>) {
        let _ = match value {
            Number::Whole(value) => write!(self.out, " {value}"),
            Number::Signed(value) => write!(self.out, " {value}"),
            Number::Real(value) => write!(self.out, " {value}"),
        };
        if let Some(timestamp) = timestamp {
            let _ = write!(self.out, " {timestamp}");
        }
        self.out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_in_the_order_of_the_alphabet() {
        let group = CgroupStats {
            id: "/kubepods/podu/c1".into(),
            name: "c1".into(),
            image: "a\"b".into(),
            container: "main".into(),
            pod: "web".into(),
            namespace: "default".into(),
            ..CgroupStats::default()
        };
        let labels = Labels::of(&group);
        let mut text = Text::default();
        text.family("nothing_of_it", Kind::Gauge, "None.");
        text.family("x_total", Kind::Counter, "What.");
        let extra = Extra {
            before_id: label("device", "/dev/vda"),
            before_name: [label("major", "8"), label("minor", "0")].join(","),
            before_pod: label("operation", "Read"),
            last: label("scope", "container"),
        };
        text.of_group(&labels, &extra, Number::Whole(7), Some(1000));
        text.of_group(&labels, &Extra::default(), Number::Real(0.25), None);
        assert_eq!(
            text.finish(),
            "# HELP x_total What.\n# TYPE x_total counter\n\
             x_total{container=\"main\",device=\"/dev/vda\",id=\"/kubepods/podu/c1\",image=\"a\\\"b\",major=\"8\",minor=\"0\",\
             name=\"c1\",namespace=\"default\",operation=\"Read\",pod=\"web\",scope=\"container\"} 7 1000\n\
             x_total{container=\"main\",id=\"/kubepods/podu/c1\",image=\"a\\\"b\",name=\"c1\",namespace=\"default\",pod=\"web\"} 0.25\n"
        );
    }
}
