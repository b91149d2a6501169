//! Counting, combining and refusing, as a table of moments and what is sent.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::events::Involved;
use crate::events::object::Occurrence;

const START: &str = "2026-01-01T00:00:00Z";

fn event(seconds: i64, reason: &str, message: &str) -> EventObject {
    about("p", seconds, reason, message)
}

fn about(pod: &str, seconds: i64, reason: &str, message: &str) -> EventObject {
    let start: Timestamp = START.parse().unwrap();
    let occurrence = Occurrence {
        involved: Involved::Pod { namespace: "d".into(), name: pod.into(), uid: pod.into(), field_path: String::new() },
        kind: "Warning".into(),
        reason: reason.into(),
        message: message.into(),
        annotations: [].into(),
        time: start + SignedDuration::from_secs(seconds),
    };
    EventObject::new(&occurrence, "n", None)
}

#[test]
fn an_equal_event_is_counted_under_its_first_name() {
    let mut correlator = Correlator::default();
    let first = event(0, "BackOff", "m");
    assert_eq!(correlator.judge(first.clone()), Correlation::Create(first.clone()));
    let Correlation::Count(second) = correlator.judge(event(7, "BackOff", "m")) else { panic!("not counted") };
    assert_eq!((second.count, &second.name, second.first), (2, &first.name, first.first));
    assert_eq!(
        second.patch(),
        serde_json::json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:07Z", "message": "m"})
    );
    // Another message, another object, another reason: another event.
    for other in [event(8, "BackOff", "x"), about("q", 8, "BackOff", "m"), event(8, "Failed", "m")] {
        assert!(matches!(correlator.judge(other), Correlation::Create(_)));
    }
}

#[test]
fn the_tenth_similar_event_is_combined() {
    let mut correlator = Correlator::default();
    for i in 0..9 {
        assert!(
            matches!(correlator.judge(event(i, "Unhealthy", &i.to_string())), Correlation::Create(e) if e.reporting)
        );
    }
    let Correlation::Create(combined) = correlator.judge(event(9, "Unhealthy", "9")) else { panic!("not created") };
    assert_eq!((combined.message.as_str(), combined.reporting), ("(combined from similar events): 9", false));
    assert_eq!(combined.body()["reportingComponent"], "");
    let Correlation::Count(again) = correlator.judge(event(10, "Unhealthy", "10")) else { panic!("not counted") };
    assert_eq!(
        (again.message.as_str(), again.count, &again.name),
        ("(combined from similar events): 10", 2, &combined.name)
    );
    // After ten quiet minutes it begins anew.
    assert!(matches!(correlator.judge(event(611, "Unhealthy", "11")), Correlation::Create(e) if e.message == "11"));
}

#[test]
fn an_object_has_25_events_and_one_more_every_five_minutes() {
    let mut correlator = Correlator::default();
    let mut spam = |seconds: i64| matches!(correlator.judge(event(seconds, "BackOff", "m")), Correlation::Spam);
    assert!((0..25).all(|_| !spam(0)));
    assert!(spam(0) && spam(299));
    assert!(!spam(300) && spam(300));
    // What was not sent was counted all the same.
    let Correlation::Count(last) = correlator.judge(event(1000, "BackOff", "m")) else { panic!("not counted") };
    assert_eq!(last.count, 30);
    assert!(matches!(correlator.judge(about("other", 0, "BackOff", "m")), Correlation::Create(_)));
}

#[test]
fn memories_are_bounded() {
    let mut correlator = Correlator::default();
    for i in 0..MEMORY + 50 {
        correlator.judge(about(&format!("p{i}"), 0, "Created", "m"));
    }
    assert_eq!((correlator.seen.len(), correlator.similar.len(), correlator.spam.len()), (MEMORY, MEMORY, MEMORY));
    assert!(matches!(correlator.judge(about("p0", 1, "Created", "m")), Correlation::Create(_)), "forgotten");
    assert!(matches!(correlator.judge(about(&format!("p{}", MEMORY + 49), 1, "Created", "m")), Correlation::Count(_)));
}

proptest! {
    /// However events come, those of one object stay within its budget.
    #[test]
    fn within_the_budget(moments in prop::collection::vec((0..400_i64, 0..14_u8), 1..200)) {
        let mut correlator = Correlator::default();
        let (mut now, mut sent) = (0, 0_i64);
        for (step, message) in moments {
            now += step;
            match correlator.judge(event(now, "Unhealthy", &message.to_string())) {
                Correlation::Spam => continue,
                Correlation::Create(event) => prop_assert!(event.count == 1 && event.first == event.last),
                Correlation::Count(event) => prop_assert!(event.count > 1 && event.first <= event.last),
            }
            sent += 1;
            prop_assert!(sent <= 25 + now / 300);
        }
    }
}
