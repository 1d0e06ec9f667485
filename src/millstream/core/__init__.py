"""The ground floor: message types, time, errors, canonical forms. It imports no other package of Millstream."""
