//! GETs of real local servers.
