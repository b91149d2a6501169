//! Every method of the contract with messages that must not be believed: random and hostile values in every field, found
//! by the descriptors, so that a verb that is added is asked too.

use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, MethodDescriptor, Value,
};
use tonic::Code;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;

use crate::Dice;

/// What leads out of a folder, ends a string early, looks like something else, or is too long.
const HOSTILE: [&str; 24] = [
    "",
    ".",
    "..",
    "../../../../etc/passwd",
    "a/../../b",
    "/etc/../etc/shadow",
    "a\0b",
    "\0",
    "..\0",
    "a/b",
    "-rf",
    "%00",
    "\u{202e}txt",
    "ünïcode",
    "a\nb",
    "a b",
    "~root",
    "$(id)",
    "`id`",
    "proc/self/fd/3",
    "..data/../..",
    "pod-00000000-0000-0000-0000-000000000000/../..",
    "kubernetes.io~secret/../../..",
    "{\"a\":",
];
const DEPTH: usize = 4;

/// Requests for one method.
#[derive(Debug)]
pub struct Hostile<'a> {
    pub dice: &'a mut Dice,
    /// A pod that is there: what is said of it must be as harmless as what is said of one that is not.
    pub pod_uid: &'a str,
}

impl Hostile<'_> {
    /// One message with something in every field.
    pub fn message(&mut self, of: &MessageDescriptor) -> DynamicMessage {
        self.filled(of, 0)
    }

    fn filled(&mut self, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            if depth < DEPTH && self.dice.below(8) != 0 {
                let value = self.field(&field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        let one = |this: &mut Self| this.value(field.name(), &field.kind(), depth);
        let many = [0, 1, 3, 200][usize::try_from(self.dice.below(4)).unwrap_or(0)];
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else { return Value::Map(Default::default()) };
            let value = entry.map_entry_value_field();
            let entries = (0..many).map(|_| {
                let key = self.text("key");
                (MapKey::String(key), self.value(value.name(), &value.kind(), depth))
            });
            return Value::Map(entries.collect());
        }
        if field.is_list() { Value::List((0..many.min(20)).map(|_| one(self)).collect()) } else { one(self) }
    }

    fn value(&mut self, name: &str, kind: &Kind, depth: usize) -> Value {
        let wide = [0, 1, u64::MAX, 1 << 63, u64::from(u32::MAX), self.dice.below(1 << 40)];
        let number = wide[usize::try_from(self.dice.below(6)).unwrap_or(0)];
        // The kinds of numbers wrap: every pattern of bits is a number of each.
        match kind {
            Kind::Double | Kind::Float => {
                let odd = [f64::NAN, f64::INFINITY, -0.0, f64::MAX, -1.5];
                let chosen = odd[usize::try_from(number % 5).unwrap_or(0)];
                if matches!(kind, Kind::Float) { Value::F32(chosen as f32) } else { Value::F64(chosen) }
            }
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32((number as u32).cast_signed()),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number.cast_signed()),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(number),
            Kind::Bool => Value::Bool(number % 2 == 1),
            Kind::String => Value::String(self.text(name)),
            Kind::Bytes => Value::Bytes(vec![0xff; usize::try_from(self.dice.below(2000)).unwrap_or(0)].into()),
            Kind::Message(inner) => Value::Message(self.filled(inner, depth + 1)),
            Kind::Enum(values) => {
                let known = i32::try_from(values.values().len()).unwrap_or(0);
                Value::EnumNumber(i32::try_from(self.dice.below(1000)).unwrap_or(0) % (known + 2) - 1)
            }
        }
    }

    fn text(&mut self, name: &str) -> String {
        if name.ends_with("pod_uid") && self.dice.below(2) == 0 {
            return self.pod_uid.to_owned();
        }
        match usize::try_from(self.dice.below(30)).ok().and_then(|at| HOSTILE.get(at)) {
            Some(text) => (*text).to_owned(),
            None => "../".repeat(usize::try_from(self.dice.below(4000)).unwrap_or(0)),
        }
    }
}

/// Bytes that are no message, or one that is nested deeper than any decoder should follow.
pub fn malformed(dice: &mut Dice) -> Vec<u8> {
    match dice.below(4) {
        0 => (0..dice.below(3000)).map(|_| dice.below(256).to_le_bytes()[0]).collect(),
        // Field 1 of length 2^63; then a group without end.
        1 => vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        2 => vec![0x0b; 100_000],
        // Field 1 in field 1 in field 1…
        _ => (0..2000).fold(Vec::new(), |inner: Vec<u8>, _| {
            let mut outer = vec![0x0a];
            prost::encoding::encode_varint(inner.len() as u64, &mut outer);
            outer.extend(inner);
            outer
        }),
    }
}

/// All methods of these packages.
pub fn methods(pool: &DescriptorPool, packages: &[&str]) -> Vec<MethodDescriptor> {
    pool.services()
        .filter(|service| packages.contains(&service.parent_file().package_name()))
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .collect()
}

/// Path of a method: `/kubelet.volnetd.v1.Volumes/PreparePod`.
pub fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// Sends these bytes as the message of this method; the code of the answer, and `Ok` for a stream that began.
pub async fn ask(channel: Channel, method: &str, bytes: Vec<u8>, patience: std::time::Duration) -> Code {
    let mut client = tonic::client::Grpc::new(channel);
    let Ok(path) = method.parse() else { return Code::Internal };
    let call = async {
        client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        client.server_streaming(tonic::Request::new(bytes), path, Raw).await?.into_inner().message().await
    };
    match tokio::time::timeout(patience, call).await {
        Ok(Ok(_)) => Code::Ok,
        Ok(Err(status)) => status.code(),
        Err(_) => Code::DeadlineExceeded,
    }
}

/// The bytes of a dynamic message.
pub fn bytes(message: &DynamicMessage) -> Vec<u8> {
    message.encode_to_vec()
}

/// Messages as bytes, whatever they mean.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Raw;
    type Decoder = Raw;
    fn encoder(&mut self) -> Raw {
        Raw
    }
    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;
    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = tonic::Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, tonic::Status> {
        bytes::Buf::advance(buffer, bytes::Buf::remaining(buffer));
        Ok(Some(()))
    }
}
