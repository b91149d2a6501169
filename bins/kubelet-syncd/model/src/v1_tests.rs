use k8s_openapi::api::core::v1 as generated;
use serde::de::DeserializeOwned;
use serde::de::value::Error;
use serde_json::{Value, json};

use super::*;

/// Recorded from a kube-apiserver 1.36: a pod with all that one pod can have.
const RECORDED: &str = include_str!("../../pods-api/tests/pod.json");

#[test]
fn is_read_and_written_as_the_generated_types_are() {
    let generated: generated::Pod = serde_json::from_str(RECORDED).unwrap();
    let kept: Pod = serde_json::from_str(RECORDED).unwrap();
    assert_eq!(serde_json::to_string(&kept).unwrap(), serde_json::to_string(&generated).unwrap());
}

/// The names that a type reads, in its order.
fn fields<T: DeserializeOwned>() -> Vec<&'static str> {
    struct Asked<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for Asked<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("not a structure"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            self.0.extend(fields);
            Err(Error::custom("its fields are known"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names = Vec::new();
    assert!(T::deserialize(Asked(&mut names)).is_err());
    names
}

#[test]
fn has_all_fields() {
    assert_eq!(fields::<Pod>(), fields::<generated::Pod>());
    assert_eq!(fields::<PodSpec>(), fields::<generated::PodSpec>());
    assert_eq!(fields::<Container>(), fields::<generated::Container>());
    assert_eq!(fields::<Volume>(), fields::<generated::Volume>());
    assert!(fields::<Volume>().len() > 30);
}

#[test]
fn null_is_what_is_not_there() {
    let pod: Pod =
        serde_json::from_value(json!({"metadata": null, "spec": {"containers": null}, "status": null})).unwrap();
    assert_eq!(pod, Pod { spec: Some(PodSpec::default()), ..Pod::default() });
    let volume: Volume = serde_json::from_value(json!({"name": null, "emptyDir": null})).unwrap();
    assert_eq!(volume, Volume::default());
}

#[test]
fn another_kind_is_refused() {
    for json in [json!({"kind": "Node"}), json!({"apiVersion": "v2"})] {
        let refused = serde_json::from_value::<Pod>(json.clone()).unwrap_err();
        let as_before = serde_json::from_value::<generated::Pod>(json).unwrap_err();
        assert_eq!(refused.to_string(), as_before.to_string());
    }
}

/// Read as a text and as a value, in words.
fn outcomes<T: DeserializeOwned>(json: &str) -> [Result<(), String>; 2] {
    let value: Value = serde_json::from_str(json).unwrap();
    let results = [serde_json::from_str::<T>(json), serde_json::from_value::<T>(value)];
    results.map(|result| result.map(drop).map_err(|error| error.to_string()))
}

/// A list or a scalar is no object: refused as the generated types refuse it.
#[test]
fn objects_alone_are_read() {
    let named_in_its_place = |index: usize| format!("[{}\"a\"]", "null,".repeat(index));
    let (container, volume) = (named_in_its_place(8), named_in_its_place(19));
    for json in ["[]", "[[]]", r#"[[{"name":"a"}]]"#, "null", "true", "1", "1.5", r#""a""#, &container, &volume] {
        assert_eq!(outcomes::<Pod>(json), outcomes::<generated::Pod>(json), "{json}");
        assert_eq!(outcomes::<PodSpec>(json), outcomes::<generated::PodSpec>(json), "{json}");
        assert_eq!(outcomes::<Container>(json), outcomes::<generated::Container>(json), "{json}");
        assert_eq!(outcomes::<Volume>(json), outcomes::<generated::Volume>(json), "{json}");
        assert!(outcomes::<Volume>(json).iter().all(Result::is_err), "{json}");
    }
    for json in [
        r#"{"kind":null}"#,
        r#"{"apiVersion":null}"#,
        r#"{"kind":1}"#,
        r#"{"spec":[]}"#,
        r#"{"spec":{"containers":[[]]}}"#,
        r#"{"spec":{"volumes":[[{"name":"a"}]]}}"#,
        r#"{"spec":{"volumes":{}}}"#,
    ] {
        assert_eq!(outcomes::<Pod>(json), outcomes::<generated::Pod>(json), "{json}");
        assert!(outcomes::<Pod>(json).iter().all(Result::is_err), "{json}");
    }
    assert_eq!(outcomes::<Pod>("{}"), [Ok(()), Ok(())]);
}

/// What one pod takes beside its texts: it is kept for each pod of the node.
#[test]
fn takes_little_room() {
    let sizes = [size_of::<Pod>(), size_of::<Container>(), size_of::<Volume>()];
    let before = [size_of::<generated::Pod>(), size_of::<generated::Container>(), size_of::<generated::Volume>()];
    assert!(sizes[0] <= 2300 && sizes[1] <= 650 && sizes[2] <= 272, "{sizes:?}, of the generated types {before:?}");
}
