//! Deserialises from a `serde_json::Value` and says in which field it failed: `spec.containers[0].ports[1].hostPort`.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// Why a field has not the type that the API wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeError {
    pub path: String,
    pub message: String,
}

impl TypeError {
    /// Prepends the place that the error passes on its way up.
    fn within(mut self, segment: &str) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{segment}{joint}{}", self.path);
        self
    }
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for TypeError {}

impl de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        TypeError { path: String::new(), message: message.to_string() }
    }
}

pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, TypeError> {
    T::deserialize(Reader(value))
}

struct Reader<'a>(&'a Value);

impl<'de> de::Deserializer<'de> for Reader<'de> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Number(number) => {
                if let Some(signed) = number.as_i64() {
                    visitor.visit_i64(signed)
                } else if let Some(unsigned) = number.as_u64() {
                    visitor.visit_u64(unsigned)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::Array(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Object(fields) => visitor.visit_map(Fields { fields: fields.iter(), value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

struct Items<'a> {
    items: std::slice::Iter<'a, Value>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Reader(item)).map(Some).map_err(|e| e.within(&format!("[{index}]")))
    }
}

struct Fields<'a> {
    fields: serde_json::map::Iter<'a>,
    value: Option<(&'a str, &'a Value)>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeError> {
        let Some((key, value)) = self.fields.next() else { return Ok(None) };
        self.value = Some((key, value));
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        let (key, value) = self.value.take().ok_or_else(|| de::Error::custom("value asked for before its key"))?;
        seed.deserialize(Reader(value)).map_err(|e| e.within(key))
    }
}
